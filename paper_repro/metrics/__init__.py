"""Metrics: ``pooled``, ``likelihood`` and ``sudoku`` are torchmetrics that are summed across processes; ``fits`` and
``speedup``, without torch, are for tables; ``text_scores`` takes all of ``grammar``, ``similarity`` and ``perplexity``.
"""
