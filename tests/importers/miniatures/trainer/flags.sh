#!/bin/bash
# A script's own flags, and what accelerate sets up, by flags alone.
NPROC=8
cat > zero3.json <<END
{
  "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}},
  "bf16": {"enabled": "auto"},
  "gradient_accumulation_steps": "auto",
  "train_micro_batch_size_per_gpu": "auto"
}
END
accelerate launch --use_deepspeed --deepspeed_config_file zero3.json --num_processes $NPROC --num_machines 1 \
  finetune.py \
  --model_name_or_path Qwen/Qwen2.5-0.5B \
  --per_device_train_batch_size 4 \
  --gradient_accumulation_steps 8 \
  --bf16 True \
  --gradient_checkpointing \
  --use_peft True --lora_r 16 --lora_target_modules q_proj v_proj \
  --max_seq_length 1024 \
  --report_to wandb \
  --output_dir out
