from paper_repro.kernels.tied_attention.op import descend, tied_attention

__all__ = ["descend", "tied_attention"]
