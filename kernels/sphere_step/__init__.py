from paper_repro.kernels.sphere_step.op import sphere_step as sphere_step
