from paper_repro.kernels.self_slot_attention.op import self_slot_attention

__all__ = ["self_slot_attention"]
