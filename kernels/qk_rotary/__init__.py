from paper_repro.kernels.qk_rotary.op import rotate

__all__ = ["rotate"]
