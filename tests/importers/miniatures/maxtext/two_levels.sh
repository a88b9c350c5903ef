#!/bin/bash
BATCH=4
python3 -m MaxText.train MaxText/configs/base.yml model_name=llama3-8b per_device_batch_size=$BATCH \
  dcn_data_parallelism=2 ici_fsdp_parallelism=4 ici_tensor_parallelism=2 remat_policy=minimal \
  max_target_length=4096 mu_dtype=bfloat16 steps=10 run_name=$RUN
