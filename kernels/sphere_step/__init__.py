from paper_repro.kernels.sphere_step.op import riemannian_step, sphere_step, unit

__all__ = ["riemannian_step", "sphere_step", "unit"]
