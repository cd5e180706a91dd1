"""CET, figure 2: masked images, completed by both methods and by trivial baselines."""

import json
import textwrap
from collections.abc import Sequence

from paper_repro.papers.cet.relaxations import IMAGE_MARKS, Strip, draw_strips
from paper_repro.tables import figure, plots


class Figure2(figure.Figure):
    """Images of the first seed that every method has; figure.csv holds their errors."""

    size = (7.0, 7.6)
    marks = IMAGE_MARKS

    def rows(self) -> list[figure.Row]:
        found = {key: self.view.attachments("completed.json", dict(key)) for key in self.view.points}
        common = sorted(set.intersection(*map(set, found.values()))) if found else []
        if not common:
            return []
        seed = common[0]
        contents = {dict(key)["method"]: files[seed] for key, files in found.items()}
        for name in self.artifact.baselines:
            contents[name] = self.view.baseline_attachment(name, "completed.json", seed) or b"[]"
        return [
            {"method": method, "seed": seed, "image": image, "error": error}
            for method, content in contents.items()
            for image, error in enumerate(json.loads(content), 1)
        ]

    def draw(self, canvas: figure.Canvas, rows: Sequence[figure.Row]) -> None:
        if not rows:
            return
        seed, labels = rows[0]["seed"], self.artifact.axes["method"].values
        first = {"method": rows[0]["method"]}
        strips: list[Strip] = [
            (label, plots.pixels(self.view.attachments(name, first).get(seed)), None)
            for label, name in (("original", "images.png"), ("masked", "masked.png"))
        ]
        for method in dict.fromkeys(row["method"] for row in rows):
            if method in labels:
                content = self.view.attachments("completed.png", {"method": method}).get(seed)
                label = labels[method].label
            else:
                content = self.view.baseline_attachment(method, "completed.png", seed)
                label = "\n".join(textwrap.wrap(self.artifact.baselines[method].label, 18))
            strips.append((label, plots.pixels(content), [row["error"] for row in rows if row["method"] == method]))
        draw_strips(canvas, strips)
