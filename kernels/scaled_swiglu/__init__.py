from paper_repro.kernels.scaled_swiglu.op import scaled_swiglu

__all__ = ["scaled_swiglu"]
