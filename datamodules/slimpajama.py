"""SlimPajama's token shards (CEM, D.2)."""

from paper_repro.datamodules.text import TEST, TRAIN, VAL, TokenData


class SlimPajamaData(TokenData):
    """SlimPajama's token shards: a ``TokenData`` with a third split, ``test``, that of the paper's perplexities."""

    @property
    def splits(self) -> tuple[str, ...]:
        return (TRAIN, VAL, TEST)
