from paper_repro.kernels.projected_step.op import image_step as image_step
from paper_repro.kernels.projected_step.op import projected_step as projected_step
