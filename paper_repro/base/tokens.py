"""What data, losses and metrics on tokens agree on."""

IGNORED = -100
"""The target of a place that no loss counts; PyTorch's default ``ignore_index``."""
