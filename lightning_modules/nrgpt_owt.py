"""NRGPT, section 3.4: OpenWebText by GPT-2's tokens (tables 1, 2, 5, 6, 8, figure 5)."""

from paper_repro.lightning_modules.next_token import NextTokenModule


class NRGPTOpenWebText(NextTokenModule):
    """Next-token cross-entropy; weight decay on matrices only, as in nanoGPT's trainer, which the authors use.

    Losses of different vocabularies are not comparable: those on the offline corpus are never held against the paper's.
    """
