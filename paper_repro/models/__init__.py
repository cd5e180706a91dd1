"""Architectures, one file per family; the only place with layers."""
