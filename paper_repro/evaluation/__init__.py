"""Trained language models on benchmarks of others: scoring, the evaluation harness, MMLU."""
