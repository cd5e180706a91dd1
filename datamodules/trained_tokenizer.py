"""The tokenizer of a finished cell, for whatever reads or writes text with its model."""

from collections.abc import Mapping

from paper_repro.base.errors import UsageError
from paper_repro.datamodules.counter_based import CounterBasedDataModule
from paper_repro.datamodules.tokenizers import Tokenizer


def trained_tokenizer(data: CounterBasedDataModule, trained: Mapping[str, str], cell: str) -> Tokenizer:
    """Return the tokenizer of the data found here, if it is the one that a cell was trained with.

    Args:
        data: the cell's, built anew.
        trained: what the cell's record says of its data: SHA-256 by name.
        cell: its id, for the errors.

    Raises:
        UsageError: the data have no tokenizer, are absent, or would give the text other ids.
    """
    tokenizer = getattr(data, "tokenizer", None)
    if not isinstance(tokenizer, Tokenizer):
        raise UsageError(f"cell {cell}: its data, {type(data).__name__}, have no vocabulary of text")
    found = {"tokenizer": tokenizer.fingerprint} if "tokenizer" in trained else data.data_hashes()
    for name, value in found.items():
        if trained.get(name) != value:
            raise UsageError(
                f"the {name} found here is {value[:16]}..., cell {cell} was trained with "
                f"{trained.get(name, 'none')[:16]}...: ids would mean other words; bring the data of the training "
                "(--data-root DIR, or $PAPER_REPRO_DATA)"
            )
    return tokenizer
