import dataclasses
import json
import logging
import math
import random
import socket
from pathlib import Path
from typing import Any

import pytest

from paper_repro.base import identity
from paper_repro.base.files import CorruptFileError, read_code_state, sha256_of_bytes
from paper_repro.cells import records
from paper_repro.cells.records import LIMIT_BYTES, Record, find, from_outcome, read, record_path, thin, write
from paper_repro.cells.tasks import FAILED, FINISHED, Outcome

CONFIG = {"seed": 3, "lr": 1e-05, "name": "größe", "machine": {"workers": 2, "data_root": "/somewhere"}}
CELL = identity.settings(CONFIG)
PROVENANCE = {"commit": "a" * 40, "dirty": False, "versions": {"torch": "2.13.0"}, "device": "a processor"}


def small(**changes: Any) -> Record:
    outcome = Outcome(FINISHED, {"rmse": 0.25}, {"loss": [(0, 1.0), (10, 0.5)]}, parameters=7, seconds=1.23456)
    return dataclasses.replace(from_outcome(CELL, CONFIG, outcome, PROVENANCE), **changes)


def curves(count: int, points: int) -> dict[str, list[tuple[int, float]]]:
    noise = random.Random(0)
    return {f"curve {index}": [(step, noise.random()) for step in range(points)] for index in range(count)}


def test_a_record_comes_back_as_it_was_written(tmp_path: Path) -> None:
    path = record_path(tmp_path, CELL)
    assert path == tmp_path / "cells" / CELL / "record.json"
    write(path, small())
    assert read(path) == small() == find(tmp_path, CELL) and find(tmp_path, "absent") is None
    write(tmp_path / "two", dataclasses.replace(small(), config=dict(reversed(small().config.items()))))
    assert (tmp_path / "two").read_bytes() == path.read_bytes()
    assert json.loads(path.read_text())["config"]["name"] == "größe"


def test_every_flipped_bit_and_every_other_length_is_detected(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    write(path, small())
    whole = path.read_bytes()
    undetected = []
    for index in range(len(whole)):
        for bit in range(8):
            changed = bytearray(whole)
            changed[index] ^= 1 << bit
            path.write_bytes(changed)
            try:
                read(path)
                undetected.append((index, bit))
            except CorruptFileError as error:
                assert "delete it to run the cell again" in str(error)
    for damaged in (*(whole[:length] for length in range(len(whole))), whole + b"\n", b" " + whole, whole * 2):
        path.write_bytes(damaged)
        with pytest.raises(CorruptFileError):
            read(path)
    assert len(whole) > 500 and not undetected


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"1e-05", b"1e905"),  # reads as infinity, which cannot be written as JSON
        (b'"finished"', b'"\\ud8000"'),  # half a surrogate pair, which cannot be encoded
        (b'"rmse":0.25', b'"rmse":0.24'),
        (b'"seed":3', b'"seed": 3'),  # the same value, written otherwise
    ],
)
def test_an_edited_record_counts_as_not_run_and_is_logged(tmp_path, caplog, old, new):
    path = record_path(tmp_path, small().cell)
    write(path, small())
    assert old in path.read_bytes()
    path.write_bytes(path.read_bytes().replace(old, new))
    with caplog.at_level(logging.WARNING):
        assert find(tmp_path, small().cell) is None
    assert str(path) in caplog.text and "delete it to run the cell again" in caplog.text


def test_the_record_of_another_cell_is_not_taken_for_this_one_s(tmp_path, caplog):
    write(record_path(tmp_path, "other"), small())
    assert find(tmp_path, "other") is None and "it is the record of cell" in caplog.text


@pytest.mark.parametrize(("count", "points"), [(1, 100_000), (40, 1_000), (150, 500)])
def test_a_record_is_never_over_the_limit(tmp_path: Path, count: int, points: int) -> None:
    outcome = Outcome(FINISHED, {"rmse": 0.25}, curves(count, points))
    path = tmp_path / "record.json"
    write(path, from_outcome("c", CONFIG, outcome, PROVENANCE))
    assert path.stat().st_size <= LIMIT_BYTES
    found = read(path)
    assert found.metrics == {"rmse": 0.25} and found.curves.keys() == outcome.curves.keys()
    for curve in found.curves.values():
        assert len(curve["step"]) == len(curve["value"])
        if curve["step"]:
            assert (curve["step"][0], curve["step"][-1]) == (0, points - 1)


def test_what_cannot_be_thinned_below_the_limit_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=rf"has \d+ bytes, the limit is {LIMIT_BYTES}"):
        write(tmp_path / "record.json", small(config={"text": "x" * LIMIT_BYTES}))
    assert not list(tmp_path.iterdir())


def test_thinning_keeps_first_and_last_and_spaces_evenly() -> None:
    found = thin([(step, step * 1.23456789) for step in range(1001)], 11)
    assert found["step"] == list(range(0, 1001, 100))
    assert found["value"][1] == 123.457
    assert thin([(0, 1.0), (1, math.nan), (2, math.inf), (3, 2.0)], 11) == {"step": [0, 3], "value": [1.0, 2.0]}
    assert thin([], 11) == {"step": [], "value": []}


def test_what_was_measured_and_is_not_finite_is_said(tmp_path: Path) -> None:
    outcome = Outcome(FINISHED, {"rmse": math.nan, "loss": math.inf, "steps": 12}, unavailable={"score": "needs gpt2"})
    write(tmp_path / "record.json", from_outcome("c", CONFIG, outcome, PROVENANCE))
    found = read(tmp_path / "record.json")
    assert found.metrics == {"steps": 12.0}
    assert found.unavailable == {"score": "needs gpt2", "rmse": "not finite", "loss": "not finite"}


@pytest.mark.parametrize("note", ["x" * 10_000, "über " * 400, "bad \udcff name", "line\nbreak \x00 | $"])
def test_any_note_can_be_recorded(tmp_path: Path, note: str) -> None:
    write(tmp_path / "record.json", from_outcome("c", CONFIG, Outcome(FAILED, note=note), PROVENANCE))
    assert read(tmp_path / "record.json").note == note[:500].replace("\udcff", "?")


def test_provenance_names_code_and_device_but_neither_host_nor_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("A_SECRET", "d0nt-r3c0rd-m3")
    monkeypatch.setenv("USER", "somebody-by-name")
    origin = records.provenance(records.device({"machine": {"threads": 1}}), read_code_state())
    assert origin.keys() == {"commit", "dirty", "versions", "device"}
    assert {"python", "torch", "numpy"} <= origin["versions"].keys()
    assert origin["device"].endswith("threads")
    write(tmp_path / "record.json", from_outcome("c", CONFIG, Outcome(FINISHED), origin))
    text = (tmp_path / "record.json").read_text()
    hidden = ["d0nt-r3c0rd-m3", "somebody-by-name", "A_SECRET", "PATH", "/somewhere", str(Path.home())]
    hidden += [name for name in (socket.gethostname(), socket.getfqdn()) if len(name) > 3]
    assert [word for word in hidden if word in text] == []


def test_the_device_of_a_gpu_says_how_float32_products_are_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: f"card {index}")
    machine = {"accelerator": "cuda", "devices": [1], "tf32": True}
    assert records.device({"machine": machine}) == "card 1, float32 products in TF32"
    assert records.device({"machine": machine | {"tf32": False}}) == "card 1, float32 products in full"


def beside(root: Path, record: Record, name: str, content: bytes) -> Path:
    path = record_path(root, record.cell).parent / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def test_an_attachment_is_read_whole_or_not_at_all(tmp_path: Path) -> None:
    record = small(attachments={"a.txt": sha256_of_bytes(b"text")})
    with pytest.raises(CorruptFileError, match=r"a\.txt: the record beside it names this file, which is absent"):
        records.attachment(tmp_path, record, "a.txt")
    path = beside(tmp_path, record, "a.txt", b"text")
    assert records.attachment(tmp_path, record, "a.txt") == b"text"
    for damaged in (b"", b"tex", b"text ", b"tesu"):
        path.write_bytes(damaged)
        with pytest.raises(CorruptFileError, match="not the file that the record beside it names"):
            records.attachment(tmp_path, record, "a.txt")
    beside(tmp_path, record, "b.txt", b"not named by the record")
    assert records.attachment(tmp_path, record, "b.txt") is None
