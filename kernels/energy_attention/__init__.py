from paper_repro.kernels.energy_attention.op import energy_attention

__all__ = ["energy_attention"]
