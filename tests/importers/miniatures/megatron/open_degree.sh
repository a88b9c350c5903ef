#!/bin/bash
torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 4 --hidden-size 64 --num-attention-heads 4 \
  --tensor-model-parallel-size $TP --micro-batch-size 1
