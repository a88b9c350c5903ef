#!/bin/bash
CUDA_VISIBLE_DEVICES=0,1 accelerate launch \
  --config_file examples/accelerate/launcher.yaml \
  src/train.py examples/lora/launched.yaml gradient_accumulation_steps=4
