"""What can be known of the Triton kernels without a GPU: what their launches compile to, and what bounds their time.

``shapes`` is what each op declares in ``kernels/<op>/shapes.py``, ``launches`` records and compiles, ``operations``
counts, ``gpus`` knows the limits and rates of the GPUs.
"""
