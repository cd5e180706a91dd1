from paper_repro.kernels.qk_rotary.op import rotate, rotate_queries_and_keys

__all__ = ["rotate", "rotate_queries_and_keys"]
