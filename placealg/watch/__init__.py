"""What a training step of PyTorch does, as it was seen, held against the derived program.

`seen.py` is what a recording holds, as plain data; `recorder/`, the only part that imports torch, makes it;
`names.py` says which parameter group each parameter of the user's model belongs to; `expected.py` is what the derived
program says at the sizes of the run, and `conform.py` where the two differ.
"""
