"""nGPT, Table 6: changes of the loss against the default."""

from paper_repro.papers.ngpt.ablations import AblationTable


class Table6(AblationTable):
    pass
