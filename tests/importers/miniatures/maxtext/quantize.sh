#!/bin/bash
JAX_PLATFORMS=cpu python3 MaxText/load_and_quantize_checkpoint.py base.yml \
  ici_fsdp_parallelism=1 ici_tensor_parallelism=-1 per_device_batch_size=1 model_name=llama3-8b
