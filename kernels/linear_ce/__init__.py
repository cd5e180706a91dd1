from paper_repro.kernels.linear_ce.op import linear_cross_entropy, negative_log_likelihoods

__all__ = ["linear_cross_entropy", "negative_log_likelihoods"]
