from paper_repro.kernels.tied_attention.op import descend as descend
from paper_repro.kernels.tied_attention.op import tied_attention as tied_attention
