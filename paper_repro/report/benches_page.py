"""The page of measured speeds, and of Triton kernels that were compiled without a GPU."""

import statistics
from collections.abc import Iterator, Mapping
from typing import Any

from paper_repro.base.errors import UsageError
from paper_repro.report.markup import Markup, tag
from paper_repro.report.shell import filters, page, table
from paper_repro.report.source import Source, bench_commit

HERE = "benches.html"
COMPARED = ("case", "ours", "against", "ratio", "goal", "relative error")
COMPILED = (
    "kernel",
    "model",
    "size",
    "GPU",
    "registers",
    "spilled",
    "shared KiB",
    "blocks",
    "waves",
    "at least µs",
    "bound by",
)
LEAD = (
    "Both sides were measured in one process, in turns; the ratio is that of their medians. Above 1, ours is faster or "
    "needs less memory. Below its goal, the goal is missed."
)
STATIC = (
    "Nothing here is measured: each kernel was compiled for GPUs that need not be there, at the shapes at which the "
    "papers' models launch it. The last columns are the least time by the rates of the data sheets."
)


def benches_page(source: Source) -> bytes:
    """Return the page.

    Raises:
        UsageError: a bench lacks what it should say; the message names it.
    """
    sections, devices = [], dict[str, str]()
    for name, bench in source.benches.items():
        try:
            kind = str(bench["device"]).partition(":")[0]
            devices[kind] = {"cpu": "CPU", "cuda": "GPU"}.get(kind, kind)
            sections.append(
                tag(
                    "section",
                    tag("h2", name),
                    tag(
                        "p",
                        f"{bench['device']}, {bench['threads']} thread, torch {bench['torch']}, {bench_commit(bench)}",
                        class_="soft",
                    ),
                    list(_tables(bench)),
                    data_entry=True,
                    data_device=kind,
                    data_text=f"{name} {bench['device']}".lower(),
                )
            )
        except (LookupError, TypeError, ValueError, statistics.StatisticsError) as error:
            raise UsageError(
                f"results/bench/{name}.json: damaged: {error!r} is missing or wrong; measure it again: "
                f"scripts/bench.py {name.partition('.')[0]} --json FILE"
            ) from error
    controls = filters("benches", {"device": ("Device", dict(sorted(devices.items())))})
    return page(
        HERE, "Speeds", tag("h1", "Measured speeds"), tag("p", LEAD, class_="lead"), controls, sections, wide=True
    )


def _tables(bench: Mapping[str, Any]) -> Iterator[Markup]:
    if rows := [_compared(found) for found in bench.get("comparisons", ())]:
        yield table(COMPARED, rows, "plain")
    if rows := [_cell(found) for found in bench.get("cells", ())]:
        yield table(("cell", "ms a step", "GFLOP/s", "products", "others", "evaluations"), rows, "plain")
    if rows := [_sweep(found) for found in bench.get("sweeps", ())]:
        yield table(("part", "before", "now", "before over now"), rows, "plain")
    if rows := [_command(found) for found in bench.get("commands", ())]:
        yield table(("command", "processor s", "s", "goal"), rows, "plain")
    if rows := [_compiled(found) for found in bench.get("programs", ())]:
        yield tag("p", STATIC)
        yield table(COMPILED, rows, "plain")


def _compared(found: Mapping[str, Any]) -> list[Any]:
    ratio, goal = found["ratio"], found["goal"]
    tone = None if goal is None else "good" if ratio >= goal else "bad"
    shown = tag("span", f"{ratio:.2f}×", class_=f"verdict {tone}" if tone else None)
    ours = f"{statistics.median(found['ours']):.4g} {found['unit']}"
    error = f"{found['relative_error']:.1e}"
    return [found["case"], ours, found["other"], shown, "" if goal is None else f"{goal:.3g}×", error]


def _cell(found: Mapping[str, Any]) -> list[str]:
    times = found["milliseconds"]
    shares = [f"{found[name]:.0%}" for name in ("products", "others", "evaluations")]
    time = f"{statistics.median(times):.4g} ({min(times):.4g} to {max(times):.4g})"
    return [found["case"], time, f"{found['rate']:.1f}", *shares]


def _sweep(found: Mapping[str, Any]) -> list[str]:
    sides = [f"{statistics.median(found[side]):,.8g} {found['unit']}" for side in ("before", "now")]
    return [found["case"], *sides, f"{found['ratio']:.2f}×"]


def _command(found: Mapping[str, Any]) -> list[Any]:
    took = f"{statistics.median(found['processor']):.2f}"
    shown = tag("span", took, class_=f"verdict {'good' if found['met'] else 'bad'}")
    return [found["command"], shown, f"{statistics.median(found['wall']):.2f}", f"{found['goal']:g} s"]


def _compiled(found: Mapping[str, Any]) -> list[str]:
    counts = [f"{found[name]:.3g}" for name in ("registers", "spilled")]
    counts += [f"{found['shared'] / 1024:.3g}", f"{found['blocks']:.3g}", f"{found['waves']:.3g}"]
    least = f"{max(found['microseconds'].values()):.3g}"
    return [found["kernel"], found["model"], found["size"], found["gpu"], *counts, least, found["bound"]]
