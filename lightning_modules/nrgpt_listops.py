"""NRGPT, section 3.2: ListOps, the next token of expressions that are worked out step by step (figures 2, 3 and 6)."""

from paper_repro.lightning_modules.next_token import NextTokenModule


class NRGPTListOps(NextTokenModule):
    """Next-token cross-entropy; weight decay on every parameter, plain AdamW as in the authors' ListOps trainer.

    A loss near 0.77 nats per token is the lowest on the shipped data, because the question cannot be foreseen.
    """

    decay_matrices_only = False
