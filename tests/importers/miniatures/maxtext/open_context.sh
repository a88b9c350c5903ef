# No line here begins with a shebang.
export EXECUTABLE="train.py"
python3 -m MaxText.decode base.yml per_device_batch_size=1 ici_tensor_parallelism=4 model_name=llama3-8b
python3 MaxText/$EXECUTABLE base.yml model_name=llama3-8b \
  load_parameters_path=/bucket/checkpoint run_name=x \
  ici_context_parallelism=-1 ici_fsdp_parallelism=1 \
  per_device_batch_size=2 remat_policy=full max_target_length=8192
