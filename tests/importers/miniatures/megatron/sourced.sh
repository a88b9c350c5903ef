#!/bin/bash
source "$(dirname "$0")/models/moe.sh"

PERF_ARGS=(
   --tensor-model-parallel-size 2
   --pipeline-model-parallel-size 1
   --expert-model-parallel-size 4
   --global-batch-size 128
   --expert-tensor-parallel-size 2
   --num-experts 8
   --sequence-parallel
   --moe-layer-recompute
   --use-dynamic-batch-size
)

ray job submit --address="http://127.0.0.1:8265" \
   -- python3 train.py \
   --actor-num-nodes 1 \
   --actor-num-gpus-per-node 8 \
   --colocate \
   ${MODEL_ARGS[@]} \
   ${PERF_ARGS[@]} \
   --lr 1e-6 $MORE
