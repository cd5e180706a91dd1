"""The data that scripts/prepare_data.py knows: each module here is found by its ``PREPARATIONS``."""
