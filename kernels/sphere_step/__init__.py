from paper_repro.kernels.sphere_step.op import sphere_step

__all__ = ["sphere_step"]
