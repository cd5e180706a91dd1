"""NRGPT, Table 1: extremes over runs, and what its printed numbers of parameters count."""

from paper_repro.papers.nrgpt.conventions import ParameterTable

SPLITS = ("train", "val")
EXTREMES = {"min": min, "max": max}


class Table1(ParameterTable):
    def summary(self) -> dict[str, float]:
        found = {}
        for model in self.artifact.axes["model"].values:
            for split in SPLITS:
                if losses := self.view.samples(f"best_{split}_loss", {"model": model}):
                    for name, extreme in EXTREMES.items():
                        found[f"{split}_{name}_{model}"] = extreme(losses.values())
        return found
