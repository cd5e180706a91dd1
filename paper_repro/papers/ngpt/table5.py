"""nGPT, Table 5: changes of the loss against the default."""

from paper_repro.papers.ngpt.ablations import AblationTable


class Table5(AblationTable):
    pass
