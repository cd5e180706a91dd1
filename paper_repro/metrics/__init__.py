"""Metrics, one small file per family.

``quantities``, ``learning_rate``, ``scaling`` and ``speedup`` need no torch: tables are rendered with them.
``pooled``, ``regression``, ``images`` and ``likelihood`` hold torchmetrics metrics, summed across processes.
"""
