"""CEM, section 4 and appendix D: SlimPajama by Llama and by Llama with its parts recast as energy updates."""

from torch import Tensor

from paper_repro.lightning_modules.next_token import ChunkedNextTokenModule


class CEMSlimPajama(ChunkedNextTokenModule):
    """Next-token cross-entropy on packed windows; test perplexity is exp of the ``loss`` of the evaluation split.

    Weight decay is for matrices, U and V of the preconditioners among them, and for no ``diagonal``, be it one for each
    head: the paper does not say what it was for (our reading).
    """

    def decays(self, name: str, parameter: Tensor) -> bool:
        return parameter.ndim >= 2 and not name.endswith("diagonal")
