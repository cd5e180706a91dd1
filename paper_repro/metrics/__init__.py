"""Metrics, one small file per family.

``quantities``, ``learning_rate``, ``scaling``, ``speedup``, ``transition`` need no torch: tables use them.
``pooled``, ``regression``, ``images`` and ``likelihood`` hold torchmetrics metrics, summed across processes.
``diversity``, ``grammar``, ``grammar_checkers``, ``similarity`` and ``perplexity`` score texts; ``text_scores``
takes all of them at once.
"""
