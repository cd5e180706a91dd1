"""CEM, Table 2: shared settings, and the tokens of each size."""

from paper_repro.tables import table


class Table2(table.Table):
    def summary(self) -> dict[str, float]:
        found = {name: {self.view.counted(name, dict(key)) for key in self.view.points} for name in ("lr", "warmup")}
        return {name: value for name, values in found.items() for value in values if value and len(values) == 1}

    def remarks(self) -> list[str]:
        found = []
        for key in self.view.points:
            steps, tokens = (self.view.only(name, dict(key)) for name in ("steps", "tokens"))
            if steps and tokens:
                label = self.view.label("size", dict(key)["size"])
                found.append(f"{label}: {steps * tokens / 1e9:.2f} billion tokens")
        return [f"Steps times tokens a step: {'; '.join(found)}."] if found else []
