"""Trained models for use elsewhere: weights with a config beside them."""
