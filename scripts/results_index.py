"""Writes what follows from the committed results: README.md, undecided.md and bench/README.md, heads of experiments.

results_index.py            write all; the head of an experiment's config says what a run should come to
results_index.py --check    write nothing; exit code 1 if one of them is not current
"""

import runpy
from pathlib import Path

if __name__ == "__main__":  # before what another Python lacks is imported
    runpy.run_path(str(Path(__file__).with_name("environment.py")), {"SCRIPT": __file__}, "__main__")

import json
import math
import os
import statistics
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tabulate import tabulate

from paper_repro.artifacts import catalogue, expected, open_claims, paper_claims
from paper_repro.artifacts.listing import counted, published_listing
from paper_repro.artifacts.verdicts import FITTED
from paper_repro.base.command_line import RESULTS, parse, run_main
from paper_repro.base.errors import UsageError
from paper_repro.kernels.static import summary
from paper_repro.kernels.static.gpus import GPUS
from paper_repro.site.source import bench_commit, read_bench

WRITTEN_BY = "<!-- Written by scripts/results_index.py; edit that script, not this file. -->"

ARTIFACTS = """# The committed reference

One line for each table or figure that this repository can rerun. The link opens the published table, with its claims
and notes; the figure lies beside it. A title is the paper's; "made from" says which data and which size of models stand
behind our numbers. The scale says how the reference was made: `exact` is arithmetic, `cpu` is reduced (cem/table3 is
the exception: its models have the paper's size). No artifact has a reference at scale `paper` yet.

{table}

{totals}

{covered}

How to read the words: [docs/verdicts.md](../docs/verdicts.md). What a reader should know before quoting a line:

* **cem/table3 is fitted.** The paper does not print its data sizes, lengthscales or optimiser. Ours were chosen to come
  close to the printed table, so its numbers are called `fitted`, not `reproduced`: a fit exists. {fitted} of its
  {judged} measured numbers lie within one published standard deviation. With the paper's own settings it would be about
  {expected}, if the paper's means are of five repeats or more, which it does not say.
* **Whose claim it is.** A claim is the paper's or a question of ours. Both are counted apart above, and the table of
  claims has a column for it.
* **Claims at scale `cpu` are judged on small models and small data.** What fails or holds there may do otherwise at
  full scale.
* **A title names the paper's data.** "Made from" names ours: docstrings of installed Python packages stand in for
  OpenWebText and SlimPajama, faces of Labeled Faces in the Wild for CelebA.

What is undecided, what would decide it and at what price: [undecided.md](undecided.md).

Folders: `cells/` holds one record for each cell, `<paper>/<artifact>/<scale>/` the tables and figures made from them,
[bench/](bench/README.md) the measured speeds. `reproduce.py ARTIFACT --publish` writes records, tables and figures.
"""

BENCHES = """# Measured speeds

`python scripts/bench.py NAME --json FILE` runs both sides in one process, in turns, and writes the ratio of their
medians. A ratio above 1 means that ours is faster, or needs less memory. A ratio below the goal is a goal missed.
"Relative error" is the largest difference between the results of both sides. A file names its device, versions, commit
and whether the code had uncommitted changes, and carries a seal, as records of cells do. "Commit unknown" stands where
a file was measured before it could say so: such a file has no seal either, and needs a GPU. `cpu: x86_64` stands where
a file does not name its processor: `cells` was measured on an AMD EPYC, the others on an Intel Xeon with products of
bfloat16 in AVX512 and AMX.

{table}

* `ensemble` trains many small models as one stack, against a plain loop over them. The stack wins while a model's step
  is short. The more tokens a step has, the more of its time matrix products take: at the batch sizes of ListOps the
  goal is missed.
* `nrgpt_block` holds the block's closed form against torch.func.grad of the same energy. Its memory rows are the peak
  of a whole training step, with and without the recomputation of states.
* `ngpt_step` compares a step of nGPT with one of its GPT, both with the same set of ops.
* `ebt_step` compares a step of EBT, whose streams may be split or concatenated, with one of Transformer++. Its rows
  of matrix products say how much longer a step has to take at the least.
* `ebt_image_step` compares a step of EBT on noised images with one of DiT, and the loading of a batch with EBT's step.
* `ngpt_optim` measures Adam with the projection to unit rows. On a CPU it takes {projection} times as long as Adam
  alone, where the goal is {projection_goal}: the projection moves 12 bytes a number where Adam moves 28.
* On a GPU: lines without "cpu". Where a step is short the processor, which launches it, decides: `attn_hvp`,
  `nrgpt_block` of width 64 and 128, `ensemble`, and `ngpt_ops` of 16,384 tokens: eight times as many take only
  {eightfold} times as long.
* `cem_attn` on a GPU against its goal of {flash_goal} times flash attention: {flash_without} times without the shared
  diagonal, {flash_with} times with it. Scores and their gradient, which the heads share, are products of their own, and
  dS takes one more pass over all heads. The tiles of keys were changed after these lines.
* `cet_relax` in bfloat16 on a CPU misses its goal. Its sums have to be float32 as on a GPU, and PyTorch has no such
  product of bfloat16 factors for a CPU: two of three products take factors that are rounded and then widened again.
* `cet_relax` and `cet_memory` on a GPU were measured before the kernels of CET's attention got offsets of 32 bits.
* `ngpt_step`, `ebt_step`, `ebt_image_step` and `ensemble` have only their first lines on a GPU: the time that was lent
  ended there, or two models that are not fused did not fit.

## Where the time of a cell goes

`python scripts/bench.py cells --json FILE` profiles cells of scale `cpu`: the forward and backward pass of a batch in
one thread, on a machine that does nothing else. Shares are of the time of a step; what is neither a product nor another
operation is Python and dispatch. "Compiled" is the time of a compiled step over that of an uncompiled one
(`machine.compile=auto` takes the shorter); evaluations are shares of a whole run.

{cells}

## What commands take

`python scripts/bench.py commands --json FILE` calls the commands as whole processes, on a machine that does nothing
else: those that train nothing several times, each artifact at scale `smoke` (`exact`, where it has no other) once,
with one worker and an empty folder of runs. Times are seconds of a processor, children included; goals are those of
this repository. {slow}

{commands}

## What many runners ask of a file server

`python scripts/bench.py many_runners --json FILE` plays a sweep of 10,000 cells that train nothing on 256 runners, with
the code of an older commit and with that of the file. Files are real; clock, hosts and processes are simulated. One
cell in 50 raises, one in 100 kills its worker once, one runner in 16 is killed and comes again on another node. A file
operation is one request for a path below the folder of runs (stat, open, link, unlink, the listing of a folder).
Processor time is that of real processes.{outcome}

{sweeps}

## Triton kernels without a GPU

`python scripts/bench.py kernels_static --json FILE` compiles every Triton kernel for an A100 (sm_80) and an H100
(sm_90) with Triton's own compiler and ptxas, at the shapes at which the papers' models launch it. Nothing here is
measured. Two numbers in one place are those of the A100 and of the H100.

* **Tile**: the constants of a program that are whole numbers, warps and stages of its loops.
* **Registers** of a thread, **spilled** bytes of its stack, KiB of **shared** memory of a block.
* **Blocks** that a multiprocessor holds at once, by these and by its limits. **Waves**: all programs over what all
  multiprocessors hold at once. Below 1 not all places are taken; programs that share the work equally take nearly as
  long in 1.1 waves as in 2.
* **Bytes** that are read or written at least, FLOPs of matrix **products** that the result takes, and other
  **operations** that are computed (comparisons, conversions and indices not counted), each for one element; the list
  below says what an element is. **Padding**: products that are computed over those that the result takes.
* **At least**: microseconds of a launch by the rates of the data sheets, and what takes longest: memory ({memory}
  TB/s), products (bfloat16: {bf16} TFLOP/s, TF32: half of it, float32: {fp32}) or operations ({operations}
  TFLOP/s). A kernel takes longer, for nothing runs at the rates of a data sheet.

Goals: nothing spilled, and two blocks or more of every kernel that is bound by memory. {goals}

Triton {triton}, ptxas {ptxas}.

{programs}

What an element is, and why tiles are as they are:

{ops}
"""


def main(arguments: Sequence[str]) -> int:
    words = parse(arguments, ("--check", "--help", "-h"), ())
    if words.flags & {"--help", "-h"}:
        print(__doc__)
        return 0
    os.environ.pop(catalogue.EXTRA_PAPERS, None)  # the reference is that of the artifacts that lie in the repository
    tables = [json.loads(path.read_text()) for path in sorted(RESULTS.glob("*/*/*/table.json"))]
    if unknown := sorted({table["artifact"] for table in tables} - catalogue.find().keys()):
        raise UsageError(f"{RESULTS / unknown[0]} has a table, {catalogue.PAPERS} no file: add that, or delete it")
    texts = {"README.md": _artifacts(RESULTS, tables), "undecided.md": open_claims.page(tables)}
    texts["bench/README.md"] = _benches(RESULTS / "bench")
    pages = {RESULTS / name: f"{WRITTEN_BY}\n{text}" for name, text in texts.items()} | expected.pages(RESULTS)
    if "--check" in words.flags:
        stale = [path for path, text in pages.items() if not path.is_file() or path.read_text() != text]
        for path in stale:
            print(f"{path} is not what the tables say: run python scripts/results_index.py", file=sys.stderr)
        return int(bool(stale))
    for path, text in pages.items():
        path.write_text(text)
    return 0


def _artifacts(results: Path, tables: Sequence[dict[str, Any]]) -> str:
    """Write the page that lists every artifact with the verdicts of its reference."""
    totals = [_counted(counted(tables), whose) for whose in ("paper", "ours")]
    measured = _measured(json.loads((results / "cem/table3/cpu/table.json").read_text()))
    return ARTIFACTS.format(
        table=published_listing(results),
        totals=f"Claims of the papers: {totals[0]}. Questions of ours: {totals[1]}.",
        covered=_covered(),
        fitted=measured.count(FITTED),
        judged=len(measured),
        expected="{:.0f} to {:.0f} %".format(*(100 * share for share in within_one_deviation())),
    )


def _counted(tables: Iterable[Mapping[str, Any]], whose: str) -> str:
    """Count the verdicts on the papers' claims, or on ours."""
    claims = Counter(claim["verdict"] for table in tables for claim in table["claims"] if claim["whose"] == whose)
    verdicts = ", ".join(f"{count} {verdict}" for verdict, count in sorted(claims.items()))
    return f"{claims.total()}, of which {verdicts}"


def _covered() -> str:
    """Say which claims of the papers no artifact tests yet, and how many further ones artifacts test."""
    claims = [claim for name in catalogue.find() for claim in catalogue.load(name).claims]
    tested = {claim.catalogue for claim in claims}
    further = sum(claim.catalogue is None and not claim.ours for claim in claims)
    listed = paper_claims.known()
    open_claims = [f"* {item.paper}, {item.where}: {item.says}." for item in listed.values() if item.id not in tested]
    count = len(listed) - len(open_claims)
    text = (
        f"The papers make {len(listed)} claims that we have listed; artifacts test {count} of them, and {further} "
        "further claims of the papers that are not in the list."
    )
    return "\n".join([f"{text} Not tested yet:", "", *open_claims]) if open_claims else text


def _measured(table: dict[str, list[dict[str, str]]]) -> list[str]:
    """Return the verdicts on the measured (not counted) numbers of Table 3 of CEM, floors left out."""
    rows = [row for row in table["rows"] if not row.get("floor")]
    return [row["verdict"] for row in rows if row["quantity"] in ("train_rmse", "test_rmse")]


def within_one_deviation(ours: int = 10, theirs: int = 5) -> tuple[float, float]:
    """Return the share of means that lie within one standard deviation of another mean of the same distribution.

    Args:
        ours: seeds behind each mean.
        theirs: repeats behind the other mean, for the first number; it is of infinitely many for the second.
    """
    normal = statistics.NormalDist()
    errors = (math.sqrt(1 / ours + 1 / theirs), math.sqrt(1 / ours))
    few, many = (2 * normal.cdf(1 / error) - 1 for error in errors)
    return few, many


def _benches(folder: Path) -> str:
    """Write the page that lists the ratios of every published bench beside their goals."""
    rows: list[list[str]] = []
    cells: list[list[str]] = []
    sweeps: list[list[str]] = []
    commands: list[dict[str, Any]] = []
    outcome = ""
    static: dict[str, Any] = {"programs": [], "ops": {}, "triton": "", "ptxas": ""}
    for path in sorted(folder.glob("*.json")):
        bench = read_bench(path)
        where = f"{bench['device']}, {bench['threads']} thread"
        if "programs" in bench:
            static = bench
        cells += [_cell(found, where, bench_commit(bench)) for found in bench.get("cells", [])]
        sweeps += [_sweep(found, where, bench_commit(bench)) for found in bench.get("sweeps", [])]
        commands += [{**found, "where": where, "code": bench_commit(bench)} for found in bench.get("commands", [])]
        for found in bench.get("outcomes", []):
            outcome = _outcome(found, bench["before"])
        for found in bench.get("comparisons", []):
            goal = "" if found["goal"] is None else f"{found['goal']:.3g}x"
            error = f"{found['relative_error']:.1e}"
            ours = f"{statistics.median(found['ours']):.4g} {found['unit']}"
            named = [bench["bench"], found["case"], ours, found["other"]]
            rows.append([*named, f"{found['ratio']:.2f}x", goal, error, where, bench_commit(bench)])
    headers = ["bench", "case", "ours", "against", "ratio", "goal", "relative error", "where", "code"]
    return BENCHES.format(
        **_remarks(folder),
        memory=_rates(gpu.bytes_per_second for gpu in GPUS),
        bf16=_rates(gpu.products_per_second["bf16"] for gpu in GPUS),
        fp32=_rates(gpu.products_per_second["fp32"] for gpu in GPUS),
        operations=_rates(gpu.operations_per_second for gpu in GPUS),
        table=tabulate(rows, headers, tablefmt="github", disable_numparse=True),
        cells=tabulate(cells, CELL_HEADERS, tablefmt="github", disable_numparse=True) if cells else _NOT_YET,
        sweeps=tabulate(sweeps, SWEEP_HEADERS, tablefmt="github", disable_numparse=True) if sweeps else _NOT_YET,
        **_commands(commands),
        outcome=outcome,
        programs=tabulate(summary.rows(static["programs"]), summary.HEADERS, tablefmt="github", disable_numparse=True),
        goals=summary.missed(static["programs"]),
        ops="\n".join(f"* `{name}` ({op['element']}): {op['tiles']}" for name, op in static["ops"].items()),
        triton=static["triton"],
        ptxas=static["ptxas"],
    )


def _remarks(folder: Path) -> dict[str, str]:
    """Return the numbers that the remarks below the table say, from the same files."""
    flash = _against(folder / "cem_attn.cuda.json", "flash attention")
    optim = _against(folder / "ngpt_optim.cpu.json", "fused AdamW alone")
    times = _against(folder / "ngpt_ops.cuda.json", "definition")
    small = {(case.replace("16384", "131072"), found["other"]): found for case, found in times if "16384" in case}
    return {
        "eightfold": _range(
            statistics.median(found["ours"]) / statistics.median(small[case, found["other"]]["ours"])
            for case, found in times
            if (case, found["other"]) in small
        ),
        "flash_goal": _range(1 / found["goal"] for _, found in flash),
        "flash_without": _range(1 / found["ratio"] for case, found in flash if "without" in case),
        "flash_with": _range(1 / found["ratio"] for case, found in flash if "without" not in case),
        "projection": _range(1 / found["ratio"] for _, found in optim),
        "projection_goal": _range(1 / found["goal"] for _, found in optim),
    }


def _against(path: Path, other: str) -> list[tuple[str, dict[str, Any]]]:
    """Return the comparisons of a file with others of that name, each behind its case; none where it is absent."""
    comparisons = read_bench(path)["comparisons"] if path.is_file() else []
    return [(found["case"], found) for found in comparisons if other in found["other"]]


def _range(values: Iterable[float]) -> str:
    """Write the least and the largest of some numbers."""
    found = [f"{value:.1f}" for value in sorted(values)]
    return " to ".join(dict.fromkeys((found[0], found[-1]))) if found else "(not measured)"


def _rates(values: Iterable[float]) -> str:
    """Write rates in units of 10 to the power of 12."""
    return " and ".join(f"{value / 1e12:.3g}" for value in values)


CELL_HEADERS = [
    "cell",
    "ms a step",
    "compiled",
    "GFLOP/s",
    "products",
    "others",
    "of these",
    "evaluations",
    "the last",
    "where",
    "code",
]


def _cell(found: dict[str, Any], where: str, code: str) -> list[str]:
    """Write what a step of one kind of cells takes."""
    times, compiled = found["milliseconds"], found["compiled"]
    return [
        found["case"],
        f"{statistics.median(times):.4g} ({min(times):.4g} to {max(times):.4g})",
        f"{compiled:.2f}" if compiled else "",
        f"{found['rate']:.1f}",
        f"{found['products']:.0%}",
        f"{found['others']:.0%}",
        ", ".join(f"{name} {share:.0%}" for name, share in found["slowest"]),
        f"{found['evaluations']:.1%}",
        f"{found['last']:.1%}",
        where,
        code,
    ]


COMMAND_HEADERS = ["command", "processor s", "s", "goal", "where", "code"]


def _commands(found: Sequence[dict[str, Any]]) -> dict[str, str]:
    """Return the table of what commands take, and the sentence on goals that are missed."""
    rows = [
        [
            f"`{one['command']}`" if len(one["processor"]) == 1 else f"`{one['command']}`, {one['case']}",
            f"{statistics.median(one['processor']):.2f}",
            f"{statistics.median(one['wall']):.2f}",
            f"{one['goal']:g} s",
            one["where"],
            one["code"],
        ]
        for one in found
    ]
    missed = [f"{one['case']} ({statistics.median(one['processor']):.1f} s)" for one in found if not one["met"]]
    return {
        "commands": tabulate(rows, COMMAND_HEADERS, tablefmt="github", disable_numparse=True) if rows else _NOT_YET,
        "slow": f"Goals missed: {', '.join(missed)}." if missed else "All goals are met." if found else "",
    }


SWEEP_HEADERS = ["part", "before", "now", "before over now", "where", "code"]
_NOT_YET = "Not measured yet."


def _sweep(found: dict[str, Any], where: str, code: str) -> list[str]:
    """Write one part of what a sweep costs, before and now."""
    sides = [f"{statistics.median(found[side]):,.4g}" for side in ("before", "now")]
    if found["unit"] == "file operations":
        sides = [f"{statistics.median(found[side]):,.0f}" for side in ("before", "now")]
    return [found["case"], *(f"{side} {found['unit']}" for side in sides), f"{found['ratio']:.2f}x", where, code]


def _outcome(found: dict[str, Any], before: str) -> str:
    """Say what became of the simulated sweep."""
    statuses = ", ".join(f"{count:,} {status}" for status, count in sorted(found["statuses"].items()))
    began, most = ([f"{value:,}" for value in found[name]] for name in ("begun", "most_of_a_runner"))
    return (
        f' "Before" is commit {before[:10]}. The {found["cells"]:,} cells on {found["runners"]} runners came to the '
        f"same records byte for byte on both sides ({statuses}); {found['killed_runners']} runners were killed, cells "
        f"began {began[0]} and {began[1]} times. The busiest runner asked {most[0]} and {most[1]} times."
    )


if __name__ == "__main__":
    sys.exit(run_main(main))
