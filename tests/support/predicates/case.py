"""What a predicate is tried on."""

from dataclasses import dataclass

from paper_repro.tests.support.made_up import Made


@dataclass(frozen=True)
class Case:
    """Records of an artifact on which a predicate must hold, and others on which it must fail."""

    artifact: str
    holds: Made
    fails: Made
