"""CEM, section 4 and appendix D: SlimPajama by Llama and by Llama with its parts recast as energy updates."""

from typing import Any

from paper_repro.lightning_modules.next_token import ChunkedNextTokenModule


class CEMSlimPajama(ChunkedNextTokenModule):
    """Next-token cross-entropy on packed windows; test perplexity is exp of the ``loss`` of the evaluation split.

    Weight decay is for matrices, U and V of the preconditioners among them, and for no ``diagonal``, be it one for each
    head: the paper does not say what it was for (our reading).
    """

    def parameter_groups(self) -> list[dict[str, Any]]:
        trained = [(name, parameter) for name, parameter in self.named_parameters() if parameter.requires_grad]
        decays = [parameter.ndim >= 2 and not name.endswith("diagonal") for name, parameter in trained]
        matrices = [parameter for (_, parameter), decay in zip(trained, decays, strict=True) if decay]
        others = [parameter for (_, parameter), decay in zip(trained, decays, strict=True) if not decay]
        return [{"params": matrices}, {"params": others, "weight_decay": 0.0}]
