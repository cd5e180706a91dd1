from paper_repro.kernels.scaled_swiglu.op import scaled_swiglu as scaled_swiglu
