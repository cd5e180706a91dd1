"""NRGPT, Table 5: what its printed numbers of parameters count."""

from paper_repro.papers.nrgpt.conventions import ParameterTable


class Table5(ParameterTable):
    pass
