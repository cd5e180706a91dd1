"""CEM, Table 1: the parameters that tied attention saves."""

from paper_repro.tables import claims
from paper_repro.tables.view import View


def estimate_half_of_the_attention(view: View) -> claims.Estimate:
    """Return the share of the 4 D^2 parameters of Llama's attention, in each layer, that CEM attention saves."""
    found: dict[str, float | None] = {}
    for size, spec in view.artifact.axes["size"].values.items():
        llama, own = ({"size": size, "model": model} for model in ("llama", "attention"))
        before, after = (view.only("parameters", place) for place in (llama, own))
        width, layers = (view.counted(name, llama) or 0.0 for name in ("width", "layers"))
        found[spec.label] = None if before is None or after is None else (before - after) / (4 * width**2 * layers)
    return claims.count("saved share of attention's parameters", found)
