from paper_repro.kernels.qk_rotary.op import rotate as rotate
