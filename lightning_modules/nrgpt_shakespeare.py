"""NRGPT, section 3.3: Shakespeare by characters (figure 4, table 4)."""

from paper_repro.lightning_modules.next_token import NextTokenModule


class NRGPTShakespeare(NextTokenModule):
    """Next-character cross-entropy; weight decay on matrices only, as in nanoGPT's trainer, which the authors use."""
