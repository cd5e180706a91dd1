"""What the tables of CEM's language models compute."""

from paper_repro.artifacts import tables
from paper_repro.artifacts.views import View
from paper_repro.papers.cem.text import with_perplexity


class PerplexityTable(tables.Table):
    """A table whose metric ``perplexity`` is computed: exp of the mean loss over all evaluated tokens.

    Of the test split where the data have one, else of the validation split.
    """

    def __init__(self, view: View) -> None:
        super().__init__(with_perplexity(view))
