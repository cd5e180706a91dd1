from paper_repro.kernels.energy_attention.op import energy_attention, energy_attention_gradients

__all__ = ["energy_attention", "energy_attention_gradients"]
