from paper_repro.kernels.self_slot_attention.op import self_slot_attention, self_slot_attention_with_lse

__all__ = ["self_slot_attention", "self_slot_attention_with_lse"]
