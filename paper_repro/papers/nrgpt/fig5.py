"""NRGPT, figure 5: what the models of Table 2 write."""

import json
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from paper_repro.artifacts import figures, ties
from paper_repro.artifacts.figures import Row

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

ATTACHMENT = "texts.json"
SCORES = {"perplexity": "ppl", "gqs_paper": "gqs", "apcs_lines": "apcs", "distinct_1": "d-1", "distinct_2": "d-2"}
MEANINGS = {
    "perplexity": "perplexity",
    "gqs_paper": "grammar quality score",
    "apcs_lines": "average pairwise cosine similarity of its lines",
    "distinct_1": "share of distinct words",
    "distinct_2": "share of distinct pairs of words",
}
COLUMNS, LINES = 46, 24
"""Characters and lines of a text that the figure shows; figure.csv has it whole."""
TITLE_HEIGHT, LINE_HEIGHT = 0.5, 0.11
"""Inches."""


class Figure5(figures.Figure):
    size = (11.0, 3.0)
    marks = "One text of each model, of the first seed; above it, its scores."
    legend = False

    def rows(self) -> list[Row]:
        """Return every text of the first seed, model by model; ``drawn`` says which of them the figure shows."""
        rows: list[Row] = []
        for model in self.artifact.axes["model"].values:
            found = self.view.attachments(ATTACHMENT, {"model": model})
            if not found:
                continue
            seed = min(found)
            for text in json.loads(found[seed])["texts"]:
                scores = {name: _rounded(text["scores"].get(name)) for name in SCORES}
                rows.append({"model": model, "seed": seed, "prompt": text["prompt"], "text": text["text"], **scores})
        drawn = _prompt(rows)
        return [{**row, "drawn": row["prompt"] == drawn} for row in rows]

    def footer(self, rows: Sequence[Row]) -> str:
        """Return the lines below the figure, with what the scores that it shows are."""
        drawn = [row for row in rows if row["drawn"]]
        shown = [f"{SCORES[key]}: {text}" for key, text in MEANINGS.items() if any(row[key] != "" for row in drawn)]
        return " ".join([super().footer(rows), *([f"{'; '.join(shown)}."] if shown else [])])

    def draw(self, canvas: "Canvas", rows: Sequence[Row]) -> None:
        drawn = [row for row in rows if row["drawn"]]
        panels = canvas.subplots(1, max(1, len(drawn)), squeeze=False)[0]
        for axes in panels:
            axes.set_axis_off()
        lines = max((_fitted(row["text"]).count("\n") + 1 for row in drawn), default=LINES)
        canvas.set_size_inches(self.size[0], TITLE_HEIGHT + LINE_HEIGHT * lines)
        for axes, row in zip(panels, drawn, strict=False):
            label = self.artifact.axes["model"].values[row["model"]].label
            scores = [f"{name} {row[key]}" for key, name in SCORES.items() if row[key] != ""]
            axes.set_title(f"{label}\n{', '.join(scores)}", fontsize=7, loc="left")
            ties.tie(axes, rows, [row])
            shown = _fitted(row["text"])
            text = axes.text(0, 1, shown, family="monospace", fontsize=6, va="top", parse_math=False)
            text.set_in_layout(False)  # its panel is as high as it needs


def _prompt(rows: Sequence[Row]) -> str | None:
    """Return the prompt whose texts have the lowest mean perplexity; without perplexity the second one."""
    prompts = list(dict.fromkeys(row["prompt"] for row in rows))
    scored: dict[str, list[float]] = {}
    for row in rows:
        if row["perplexity"] != "":
            scored.setdefault(row["prompt"], []).append(row["perplexity"])
    if scored:
        return min(scored, key=lambda prompt: sum(scored[prompt]) / len(scored[prompt]))
    return prompts[min(1, len(prompts) - 1)] if prompts else None


def _fitted(text: str) -> str:
    lines = [part for line in text.splitlines() for part in textwrap.wrap(line, COLUMNS) or [""]]
    shown = [_printable(line) for line in lines[:LINES]]
    return "\n".join(shown + (["..."] if len(lines) > LINES else []))


def _printable(line: str) -> str:
    """Return the line with what a font may lack replaced."""
    return "".join(letter if letter.isascii() and letter.isprintable() else "?" for letter in line)


def _rounded(value: Any) -> Any:
    return "" if value is None else float(f"{value:.4g}")
