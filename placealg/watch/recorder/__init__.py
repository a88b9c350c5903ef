"""The recorder: a dispatch mode that keeps, for every element of every storage, where it comes from.

`tables.py` says what each op does with elements, `shadows.py` keeps their origins, `collectives.py` reads their calls,
`mode.py` is the mode itself, `chains.py` walks back from what the optimizer reads, `observe.py` is what users call.
"""
