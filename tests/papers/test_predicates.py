"""Every predicate of every artifact: made-up records on which it must hold, and others on which it must fail."""

import dataclasses
import importlib
import inspect
import json
from collections.abc import Iterator

import pytest

from paper_repro.artifacts import catalogue
from paper_repro.artifacts.brackets import Bracketed
from paper_repro.artifacts.claims import (
    FAILS,
    HOLDS,
    UNDECIDED,
    Claim,
    Computed,
    Every,
    Judgement,
    Negation,
    Predicate,
    judge,
)
from paper_repro.artifacts.judgements import settle, supported
from paper_repro.artifacts.names import Place
from paper_repro.artifacts.views import View
from paper_repro.base.command_line import RESULTS
from paper_repro.tests.support import made_up
from paper_repro.tests.support.made_up import MadeUpView
from paper_repro.tests.support.predicates import cem, cet, ebt, ngpt, nrgpt
from paper_repro.tests.support.predicates.case import Case
from paper_repro.tests.support.predicates.solved import made_of

CASES: dict[str, Case] = {**cem.CASES, **cet.CASES, **ebt.CASES, **ngpt.CASES, **nrgpt.CASES}


def functions() -> Iterator[str]:
    """Every function ``judge_NAME(view)`` of the papers, as ``paper.module.NAME``."""
    for path in sorted(catalogue.PAPERS.rglob("*.py")):
        name = ".".join(path.relative_to(catalogue.PAPERS).with_suffix("").parts)
        for own, found in vars(importlib.import_module(f"paper_repro.papers.{name}")).items():
            here = own.startswith("judge_") and found.__module__ == f"paper_repro.papers.{name}"
            if here and len(inspect.signature(found).parameters) == 1:
                yield f"{name}.{own.removeprefix('judge_')}"


def claims() -> Iterator[tuple[str, Claim]]:
    for name in catalogue.find():
        yield from ((name, claim) for claim in catalogue.load(name).claims)


def judged(function: str, view: MadeUpView) -> Judgement:
    home, _, name = function.rpartition(".")
    judgement: Judgement = getattr(importlib.import_module(f"paper_repro.papers.{home}"), f"judge_{name}")(view)
    return judgement


def has_function(predicate: Predicate) -> bool:
    if isinstance(predicate, Negation):
        return has_function(predicate.part)
    if isinstance(predicate, Every):
        return any(map(has_function, predicate.parts))
    return isinstance(predicate, Computed)


def test_every_function_that_judges_has_records_on_which_it_holds_and_fails() -> None:
    assert sorted(CASES) == sorted(functions()), "give it a Case in tests/support/predicates"


@pytest.mark.parametrize("name", CASES)
def test_a_function_holds_on_its_records_and_fails_on_the_others(name: str) -> None:
    case = CASES[name]
    for made, expected in ((case.holds, HOLDS), (case.fails, FAILS)):
        found = judged(name, made_up.view(case.artifact, made))
        assert found.verdict == expected, found
        assert settle(supported(found)).verdict == expected, "it rests on no interval and on no exact arithmetic"


BEYOND_SEEDS = {
    "ebt.tableD1.scaling_rate_gap_beyond_noise",  # printed losses
    "ebt.tableD1.scaling_rate_gap_without_the_smallest",
    "ebt.tableD1.worse_at_small_size",
    "nrgpt.table6.beyond_the_questions",  # the questions of a test
    "nrgpt.table6.beyond_the_questions_by_log_likelihood",
    "nrgpt.table6.printed_beyond_the_questions",
}
"""Judged by intervals of something else."""


@pytest.mark.parametrize("name", sorted(CASES.keys() - BEYOND_SEEDS))
def test_one_seed_decides_nothing_that_an_interval_would(name: str) -> None:
    case = CASES[name]
    for made in (case.holds, case.fails):
        if made.scale == "cpu":
            found = judged(name, made_up.view(case.artifact, dataclasses.replace(made, seeds=(0,))))
            rests_on_seeds = any(leaf.tested is not None for leaf in found.leaves())
            assert settle(supported(found)).verdict == UNDECIDED or not rests_on_seeds, found


def measured(artifact: str) -> set[str]:
    """Return the metrics that an artifact declares, and those that its published cells have or lack data for."""
    found = set(catalogue.load(artifact).metrics)
    for path in RESULTS.glob(f"{artifact}/*/table.json"):
        for cell in json.loads(path.read_text())["cells"]:
            record = json.loads((RESULTS / "cells" / cell / "record.json").read_text())
            found |= record["metrics"].keys() | record.get("unavailable", {}).keys()
    return found


def test_no_function_reads_a_metric_that_nobody_measures(monkeypatch: pytest.MonkeyPatch) -> None:
    read: set[str] = set()

    def samples(view: MadeUpView, name: str, place: Place) -> dict[int, float]:
        read.add(name)
        return View.samples(view, name, place)

    monkeypatch.setattr(MadeUpView, "samples", samples)
    wrong = {}
    for name, case in CASES.items():
        read.clear()
        judged(name, made_up.view(case.artifact, case.holds))
        if read - (known := measured(case.artifact)):
            wrong[name] = read - known
    assert wrong == {}, "it would say 'not run' for ever: name a metric of the artifact"


DECLARED = [
    (name, claim)
    for name, claim in claims()
    if not has_function(claim.predicate)
    and not isinstance(claim.predicate, Bracketed)  # tests/artifacts/test_brackets.py
]


@pytest.mark.parametrize(("name", "claim"), DECLARED, ids=[f"{name} {claim.id}" for name, claim in DECLARED])
def test_an_order_a_closeness_or_an_equality_can_hold_and_can_fail(name: str, claim: Claim) -> None:
    for expected in (HOLDS, FAILS):
        found = judge(claim, made_of(name, claim, expected))
        assert found.verdict == expected, found


def test_a_claim_with_a_function_among_its_parts_can_hold_and_can_fail() -> None:
    mixed = {
        (name, claim.id): claim
        for name, claim in claims()
        if has_function(claim.predicate) and not isinstance(claim.predicate, Computed)
    }
    assert mixed.keys() == ngpt.MIXED.keys()
    for place, case in ngpt.MIXED.items():
        for made, expected in ((case.holds, HOLDS), (case.fails, FAILS)):
            found = judge(mixed[place], made_up.view(case.artifact, made))
            assert found.verdict == expected, found
