"""What a number means: its name, its unit and which direction is better.  Needs no torch, so a table can ask.

A metric class carries its quantity as ``.quantity``; a new metric may define its own in its own file.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Quantity:
    name: str
    unit: str
    """Empty for a pure number."""
    higher_is_better: bool | None
    """None where neither direction is better, as for a learning rate."""

    @property
    def arrow(self) -> str:
        """The mark of a table header: "↑", "↓", or nothing."""
        if self.higher_is_better is None:
            return ""
        return "↑" if self.higher_is_better else "↓"

    @property
    def heading(self) -> str:
        """Name, unit and arrow as a table prints them, for example ``PSNR (dB) ↑``."""
        unit = f"({self.unit})" if self.unit else ""
        return " ".join(part for part in (self.name, unit, self.arrow) if part)

    def is_better(self, first: float, second: float) -> bool:
        """Return True if ``first`` is strictly better than ``second``; NaN is never better and never worse.

        Raises:
            ValueError: the quantity has no better direction.
        """
        if self.higher_is_better is None:
            raise ValueError(f"{self.name} has no better direction: compare it with a target value instead")
        return first > second if self.higher_is_better else first < second


MSE = Quantity("MSE", "target unit squared", higher_is_better=False)
RMSE = Quantity("RMSE", "target unit", higher_is_better=False)
PSNR = Quantity("PSNR", "dB", higher_is_better=True)
CROSS_ENTROPY = Quantity("cross-entropy", "nat/token", higher_is_better=False)
PERPLEXITY = Quantity("perplexity", "", higher_is_better=False)
BITS_PER_BYTE = Quantity("bits per byte", "bit/byte", higher_is_better=False)
OPTIMAL_LEARNING_RATE = Quantity("optimal learning rate", "", higher_is_better=None)
SCALING_EXPONENT = Quantity("scaling exponent", "", higher_is_better=True)
SCALING_EXPONENT_GAP = Quantity("scaling exponent gap", "%", higher_is_better=True)
SPEEDUP = Quantity("tokens-to-same-loss speedup", "x", higher_is_better=True)
