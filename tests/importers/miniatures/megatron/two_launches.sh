#!/bin/bash
torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 4 --hidden-size 64 --tensor-model-parallel-size 2
torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 4 --hidden-size 64 --tensor-model-parallel-size 4
