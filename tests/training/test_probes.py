import pytest
from safetensors.torch import load_file

from paper_repro.base.errors import UsageError
from paper_repro.base.files import sha256_of_bytes
from paper_repro.cells.tasks import FINISHED, WEIGHTS
from paper_repro.tests.training.doubles import KEEP

SUMMING = "paper_repro.tests.support.probes.Summing"


def probe(**options):
    return {"_target_": SUMMING, **options}


def cells_of(cell, kind, probes, **changes):
    return [cell(seed=seed, probes=probes, **changes) for seed in ((0, 1) if kind == "stacked" else (0,))]


def total(folder, cell):
    tensors = load_file(folder / cell.id / WEIGHTS).values()
    return float(sum(tensor.double().sum() for tensor in tensors))


@pytest.mark.parametrize("kind", ["single", "stacked"])
def test_probes_measure_the_weights_that_are_kept_and_leave_files_with_their_hashes(kind, cell, run, tmp_path):
    needed = tmp_path / "needed"
    probes = {"one": probe(needs=str(needed)), "two": probe(metric="again", file="again.txt"), "none": None}
    cells = cells_of(cell, kind, probes, **KEEP)
    for one, outcome in zip(cells, run(cells, tmp_path), strict=True):
        assert outcome.status == FINISHED and outcome.metrics["best_step"] < 24
        # Two sums over some eighty numbers in another order.
        assert outcome.metrics["total"] == pytest.approx(total(tmp_path, one), abs=1e-12)
        assert outcome.metrics["again"] == outcome.metrics["total"]
        assert outcome.attachments.keys() == {"total.txt", "again.txt"}
        for name, digest in outcome.attachments.items():
            content = (tmp_path / one.id / name).read_bytes()
            assert sha256_of_bytes(content) == digest
            assert content == f"{outcome.metrics['total']!r} {one.config['seed']}".encode()
        assert outcome.unavailable == {"score": f"needs gpt2: write {needed}"} and "score" not in outcome.metrics


@pytest.mark.parametrize(
    ("second", "message"),
    [
        ({"metric": "total", "file": "again.txt"}, r"probes\.two: total is there already"),
        ({"metric": "test_rmse", "file": "again.txt"}, r"probes\.two: test_rmse is there already"),
        ({"metric": "other", "file": "total.txt"}, r"probes\.two: total\.txt"),
        ({"metric": "other", "file": "record.json"}, r"probes\.two.*record\.json"),
    ],
)
def test_a_metric_or_a_file_whose_name_is_taken_is_refused(second, message, cell, run, tmp_path):
    with pytest.raises(UsageError, match=message):
        run(cells_of(cell, "single", {"one": probe(), "two": probe(**second)}), tmp_path)
