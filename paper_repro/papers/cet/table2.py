"""CET, Tables 2 to 4: whether what is printed is what is built."""

from paper_repro.artifacts.claims import UNDECIDED, Judgement, exactly
from paper_repro.artifacts.views import View

CONTRADICTED = "step_size"
"""Table 4's differs from the text's, see the notes."""
PARAMETERS = 5_475_843
TENSORS = (
    "encoder_weight",
    "encoder_bias",
    "position_bias",
    "decoder_weight",
    "decoder_bias",
    "attention_key",
    "attention_query",
    "memory_weight",
)


def judge_dimensions_multiply_out(view: View) -> Judgement:
    wrong, count = [], 0
    for key in view.points:
        item, printed = dict(key)["item"], view.printed(key, "value")
        if printed is None or item == CONTRADICTED:
            continue
        found = _value(view, item)
        if found is None:
            return Judgement(UNDECIDED, "not run")
        count += 1
        if abs(found - printed.mean) > 1e-9 * abs(printed.mean):
            wrong.append(f"{item}: {found:g}, printed {printed.mean:g}")
    return exactly(not wrong, "; ".join(wrong) or f"{count} of {count} are as printed")


def judge_parameters_add_up(view: View) -> Judgement:
    parts = [_value(view, item) for item in TENSORS]
    whole = _value(view, "parameters")
    if whole is None or None in parts:
        return Judgement(UNDECIDED, "not run")
    total = sum(part for part in parts if part is not None)
    same = total == whole == PARAMETERS
    return exactly(same, f"the tensors hold {total:,.0f}, the model {whole:,.0f}")


def _value(view: View, item: str) -> float | None:
    return next(iter(view.samples("value", {"item": item}).values()), None)
