"""NRGPT's figures: their rows from made-up records."""

import json
import math
from collections.abc import Mapping
from pathlib import Path

import pytest

from paper_repro.tables.figure import Row, figure_of
from paper_repro.tests.support.made_up import Made, Place, view, without


def rows_of(artifact: str, made: Made) -> list[Row]:
    found = figure_of(view(artifact, made))
    assert found is not None
    return found.rows()


def energies(place: Place, seed: int) -> Mapping[str, bytes]:
    lines = [f"{step},{token},{seed - step},{token},0" for step in range(3) for token in range(2)]
    return {"energies.csv": "\n".join(["step,token,total,attention,feed_forward", *lines]).encode()}


def answers(place: Place, seed: int) -> Mapping[str, float]:
    accuracy = 1 / (1 + math.exp(-6 * (math.log10(int(place["width"])) - 1.5)))
    return {"accuracy": accuracy, "train_loss": 1.0 + seed, "val_loss": 2.0}


def losses(place: Place, seed: int) -> Mapping[str, float]:
    loss = 2.0 + 0.1 * seed + (place["setting"] != "lr2e-3")
    return {"best_val_loss": loss, "val_loss": loss, "train_loss": loss}


def texts(place: Place, seed: int) -> Mapping[str, bytes]:
    perplexity = {"one": 20.0, "two": 10.0 if place["model"] == "gpt" else 50.0, "three": 25.0}
    found = [{"prompt": name, "text": f"{name}\t{seed}", "scores": {"perplexity": p}} for name, p in perplexity.items()]
    return {"texts.json": json.dumps({"texts": found}).encode()}


MADE = {
    "nrgpt/fig2": Made(files=energies),
    "nrgpt/fig3": Made(answers, parameters=lambda place: int(place["width"])),
    "nrgpt/fig4": Made(losses, noise=0.0, parameters=lambda place: int(place["width"][1:])),
    "nrgpt/fig5": Made(files=texts),
    "nrgpt/fig6": Made(files=energies),
}


def test_energies_are_those_of_the_first_seed() -> None:
    rows = rows_of("nrgpt/fig2", MADE["nrgpt/fig2"])
    assert len(rows) == 3 * 2
    assert rows[5] == {"seed": 0, "step": 2, "token": 1, "total": -2.0, "attention": 1.0, "feed_forward": 0.0}


def test_listops_has_every_run_the_fit_and_its_transition() -> None:
    rows = rows_of("nrgpt/fig3", MADE["nrgpt/fig3"])
    kinds = [row["metric"] for row in rows]
    assert kinds.count("accuracy") == kinds.count("val_loss") == 3 * 5 * 3
    assert kinds.count("fit") == 3 * 60
    stars = [row["parameters"] for row in rows if row["metric"] == "transition"]
    assert stars == pytest.approx([10 ** (1.5 + math.log(4) / 6)] * 3, rel=1e-3)


def test_shakespeare_draws_the_better_half_and_the_best_mean_of_each_size() -> None:
    rows = rows_of("nrgpt/fig4", MADE["nrgpt/fig4"])
    own = [row for row in rows if (row["metric"], row["model"], row["width"]) == ("best_val_loss", "ff1", "w64")]
    runs = sorted(row["value"] for row in own if row["kind"] == "run")
    assert runs == pytest.approx([2.0, 2.1, 2.2, 3.0, 3.0, 3.1, 3.1, 3.2, 3.2])
    assert sorted(row["value"] for row in own if row["kind"] == "run" and row["drawn"]) == runs[:5]
    (best,) = (row for row in own if row["kind"] == "best")
    assert (best["setting"], best["seed"], best["parameters"]) == ("lr2e-3", "mean", 64)
    assert best["value"] == pytest.approx(2.1)


def test_texts_are_drawn_of_the_prompt_with_the_lowest_mean_perplexity() -> None:
    rows = rows_of("nrgpt/fig5", MADE["nrgpt/fig5"])
    assert len(rows) == 3 * 3
    assert {(row["prompt"], row["text"]) for row in rows if row["drawn"]} == {("one", "one\t0")}


@pytest.mark.parametrize("artifact", MADE)
def test_a_figure_is_drawn_with_records_and_without(artifact: str, tmp_path: Path) -> None:
    for name, records in (("full", view(artifact, MADE[artifact])), ("empty", without(view(artifact, MADE[artifact])))):
        found = figure_of(records)
        assert found is not None
        assert {path.suffix for path in found.write(tmp_path / name)} == {".csv", ".png", ".svg"}
