"""CET, Table 1: the order of the estimate, and its gradient with bfloat16 products."""

from paper_repro.papers.cet.relaxations import EP
from paper_repro.tables import claims
from paper_repro.tables.view import View


def estimate_ep_second_order(view: View) -> claims.Estimate:
    """Return the power of beta with which the error falls; the small models follow from the seed alone."""
    return claims.number("power of beta", {"": view.samples("estimate_order", EP)})


def estimate_bfloat16_suffices(view: View) -> claims.Estimate:
    """Return the cosine of EP's gradient with bfloat16 products and without, over both methods."""
    methods = view.artifact.axes["method"].values.items()
    parts = {spec.label: view.samples("gradient_cosine_bfloat16", {"method": name}) for name, spec in methods}
    return claims.number("cosine of both gradients", parts)
