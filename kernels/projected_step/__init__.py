from paper_repro.kernels.projected_step.op import image_step, projected_step

__all__ = ["image_step", "projected_step"]
