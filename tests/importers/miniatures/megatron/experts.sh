#!/bin/bash
#SBATCH --nodes=4
#SBATCH --gpus-per-node=8
TP=${TP:-2}
EP=8
PRECISION="bf16"
MODEL_ARGS=(
    --num-layers 24
    --hidden-size 2048
    --num-attention-heads 16   # heads
    --num-experts 64 --moe-router-topk 8 --moe-ffn-hidden-size 1024
    --seq-length $((4 * 1024))
    --swiglu --disable-bias-linear --normalization RMSNorm --position-embedding-type rope
)
if [ "$PRECISION" == "bf16" ]; then
    TRAIN_ARGS="--bf16"
else
    TRAIN_ARGS="--fp16"
fi
if [[ -n "$EXTRA" ]]; then
    TRAIN_ARGS+=" --fp8-format hybrid"
fi
TRAIN_ARGS+=" --micro-batch-size 1 --global-batch-size 256"
PARALLEL_ARGS=(--tensor-model-parallel-size $TP --expert-model-parallel-size $EP --expert-tensor-parallel-size 1
    --sequence-parallel --use-distributed-optimizer)
for flag in --overlap-grad-reduce --overlap-param-gather; do
    PARALLEL_ARGS+=($flag)
done
cat <<EOF > notes.txt
--tensor-model-parallel-size 64
EOF
rm -rf /nowhere/that/is && touch ran.txt
torchrun --nproc_per_node 8 --nnodes "$SLURM_NNODES" pretrain_gpt.py \
    "${MODEL_ARGS[@]}" $TRAIN_ARGS \
    "${PARALLEL_ARGS[@]}" --vocab-size 32000 2>&1 | tee "logs/$(date).txt"
