#!/usr/bin/env bash
launch() {
    torchrun --nproc-per-node=4 --nnodes 2 pretrain_gpt.py $COMMON "$@"
}
COMMON="--num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 --group-query-attention \
  --num-query-groups 8 --swiglu --normalization RMSNorm --position-embedding-type rope --disable-bias-linear \
  --untie-embeddings-and-output-weights --seq-length 8192 --micro-batch-size 1 --global-batch-size 16 --bf16"
launch --use_megatron_fsdp --data_parallel_sharding_strategy optim_grads --calculate_per_token_loss true \
  --fp8_format hybrid --fp8_param_gather true --recompute-granularity full --recompute-method block --recompute-num-layers 4
