"""nGPT, figure 1: validation loss while GPT and nGPT train."""

from collections.abc import Sequence

from paper_repro.papers.ngpt.runs import LOSS, best_runs, loss_difference, tokens_per_step
from paper_repro.tables import claims, figure, stats
from paper_repro.tables.view import View

MEAN = "mean"


class Figure1(figure.Figure):
    """Loss against tokens seen at the best rate of each model and budget: every seed, and the mean."""

    metric = LOSS
    marks = "Each at its best rate. Lines: means over seeds; strong: the longest training; pale: shorter ones. "
    marks += "Thin lines: seeds of the longest."

    def rows(self) -> list[figure.Row]:
        found: list[figure.Row] = []
        best = [run.place for run in best_runs(self.view)]
        for key, point in self.view.points.items():
            place, steps = dict(key), dict[float, list[float]]()
            if place not in best:
                continue
            head = {name: place[name] for name in ("model", "budget", "lr")}
            for seed, record in self.view.judged(point).items():
                curve = record.curves.get(LOSS, {"step": [], "value": []})
                for step, loss in zip(curve["step"], curve["value"], strict=True):
                    steps.setdefault(step, []).append(loss)
                    found.append({**head, "seed": seed, **self._at(place, step), LOSS: round(loss, 8)})
            for step, losses in steps.items():
                found.append({**head, "seed": MEAN, **self._at(place, step), LOSS: round(stats.mean(losses), 8)})
        return found

    def _at(self, place: dict[str, str], step: float) -> figure.Row:
        return {"step": int(step), "tokens": int(step * tokens_per_step(self.view, place))}

    def draw(self, canvas: figure.Canvas, rows: Sequence[figure.Row]) -> None:
        from matplotlib.ticker import EngFormatter

        axes = canvas.subplots()
        longest = self.view.chosen("budget")[-1]
        for model, budget, lr, seed in dict.fromkeys((r["model"], r["budget"], r["lr"], r["seed"]) for r in rows):
            own = [r for r in rows if (r["model"], r["budget"], r["lr"], r["seed"]) == (model, budget, lr, seed)]
            strong, is_mean = budget == longest, seed == MEAN
            if strong or is_mean:
                label = self.view.label("model", model) if strong and is_mean else None
                points = [r["tokens"] for r in own], [r[LOSS] for r in own]
                color, alpha = self.color(model), 1.0 if strong and is_mean else 0.4
                axes.plot(*points, color=color, alpha=alpha, linewidth=1.6 if is_mean else 0.6, label=label)
        axes.set(xlabel="training tokens", ylabel="validation loss (nats per token)")
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))


def estimate_lower_loss_at_equal_tokens(view: View) -> claims.Estimate:
    """Return the final loss of nGPT less that of GPT after the longest budget of the scale, at the best rates."""
    budget = view.chosen("budget")[-1]
    return loss_difference(view, {"model": "ngpt", "budget": budget}, {"model": "gpt", "budget": budget})
