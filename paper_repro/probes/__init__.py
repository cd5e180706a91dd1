"""Measurements on trained models (energies, answers, texts, counts), and trivial baselines of the same metrics.

A probe has ``measure``; one with a wrong argument raises ValueError when it is built, and one that is given a model or
data that it does not measure, or damaged files, UsageError.
"""
