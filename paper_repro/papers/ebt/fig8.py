"""EBT, figure 8: noised images and their denoised versions."""

from collections.abc import Sequence

from paper_repro.tables import figure, plots

METRIC, FOUND = "out_psnr", "out_found.png"
MODELS = ("dit", "ebt")


class Figure8(figure.Figure):
    """Original and noised images, and those that baselines and models find, of the first seed that all have."""

    size = (8.6, 5.6)
    marks = (
        "Rows: the same images; beside each the PSNR over all test images. DiT's second and third pass begin at an "
        "image without noise and raise its contrast each time."
    )

    def rows(self) -> list[figure.Row]:
        found = {one.name: one.samples(METRIC) for one in self.view.baselines}
        found |= {name: self.view.samples(METRIC, {"model": name}) for name in MODELS}
        common = sorted(set.intersection(*map(set, found.values())))
        return [
            {"model": name, "seed": common[0], "psnr": round(found[name][common[0]], 4)} for name in found if common
        ]

    def draw(self, canvas: figure.Canvas, rows: Sequence[figure.Row]) -> None:
        if not rows:
            return
        seed, models = rows[0]["seed"], self.artifact.axes["model"].values
        strips = {"original": plots.pixels(self.view.attachments("original.png", {"model": "ebt"}).get(seed))}
        for row in rows:
            name = row["model"]
            if name in models:
                content = self.view.attachments(FOUND, {"model": name}).get(seed)
                label = f"{models[name].label}, 3 passes"
            else:
                content, label = self.view.baseline_attachment(name, FOUND, seed), self.artifact.baselines[name].label
            strips[f"{label}\n{row['psnr']:.2f} dB"] = plots.pixels(content)
        for axes, (label, pixels) in zip(canvas.subplots(len(strips), 1), strips.items(), strict=True):
            if pixels is not None:
                plots.draw_strip(axes, pixels, label)
                axes.set_anchor("E")
