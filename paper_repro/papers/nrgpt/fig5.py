"""NRGPT, figure 5: texts of the models of Table 2."""

import json
import textwrap
from collections.abc import Sequence

from paper_repro.tables import figure, stats

ATTACHMENT = "texts.json"
SCORES = ("perplexity", "gqs_paper", "apcs_lines", "distinct_1", "distinct_2")
COLUMNS, LINES = 46, 24
"""Characters and lines of a text that the figure shows; figure.csv has it whole."""
TITLE_HEIGHT, LINE_HEIGHT = 0.5, 0.11
"""Inches."""


class Figure5(figure.Figure):
    size = (8.0, 3.0)
    marks = (
        "One text of each model, of the first seed; above it, its scores. gqs: grammar quality score; apcs: average "
        "pairwise cosine similarity of its lines; d-1, d-2: shares of distinct words and pairs of words."
    )
    legend = False

    def rows(self) -> list[figure.Row]:
        rows: list[figure.Row] = []
        for model in self.artifact.axes["model"].values:
            found = self.view.attachments(ATTACHMENT, {"model": model})
            for text in json.loads(found[min(found)])["texts"] if found else ():
                scores = {name: text["scores"].get(name) for name in SCORES}
                rounded = {name: "" if value is None else float(f"{value:.4g}") for name, value in scores.items()}
                head = {"model": model, "seed": min(found), "prompt": text["prompt"], "text": text["text"]}
                rows.append({**head, **rounded})
        drawn = _prompt(rows)
        return [{**row, "drawn": row["prompt"] == drawn} for row in rows]

    def draw(self, canvas: figure.Canvas, rows: Sequence[figure.Row]) -> None:
        drawn = [(row, _fitted(row["text"])) for row in rows if row["drawn"]]
        panels = canvas.subplots(1, max(1, len(drawn)), squeeze=False)[0]
        for axes in panels:
            axes.set_axis_off()
        lines = max((text.count("\n") + 1 for _, text in drawn), default=LINES)
        canvas.set_size_inches(self.size[0], TITLE_HEIGHT + LINE_HEIGHT * lines)
        for axes, (row, text) in zip(panels, drawn, strict=False):
            specs = {name: self.artifact.metrics[name] for name in SCORES if row[name] != ""}
            scores = [f"{spec.title} {spec.text(row[name])}" for name, spec in specs.items()]
            axes.set_title(f"{self.view.label('model', row['model'])}\n{', '.join(scores)}", fontsize=6, loc="left")
            shown = axes.text(0, 1, text, family="monospace", fontsize=6, va="top", parse_math=False)
            shown.set_in_layout(False)  # its panel is as high as it needs


def _prompt(rows: Sequence[figure.Row]) -> str | None:
    """Return the prompt whose texts have the lowest mean perplexity; without perplexity the second one."""
    prompts = list(dict.fromkeys(row["prompt"] for row in rows))
    scored: dict[str, list[float]] = {}
    for row in rows:
        if row["perplexity"] != "":
            scored.setdefault(row["prompt"], []).append(row["perplexity"])
    if scored:
        return min(scored, key=lambda prompt: stats.mean(scored[prompt]))
    return prompts[min(1, len(prompts) - 1)] if prompts else None


def _fitted(text: str) -> str:
    """Return the lines that the figure shows, with letters replaced that a font may lack."""
    lines = [part for line in text.splitlines() for part in textwrap.wrap(line, COLUMNS) or [""]]
    shown = "\n".join(lines[:LINES] + (["..."] if len(lines) > LINES else []))
    return "".join(letter if letter.isascii() and (letter.isprintable() or letter == "\n") else "?" for letter in shown)
