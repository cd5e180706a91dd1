from paper_repro.kernels.scaled_swiglu.op import scaled_swiglu, scaled_swiglu_of_product

__all__ = ["scaled_swiglu", "scaled_swiglu_of_product"]
