"""The colours of all figures: one for each model, the same in every paper where models play the same part.

A plain Transformer is ink, whichever its name; a model that descends an energy is blue; its variants and the other
baselines have the colours between.  All figures keep a white ground, in a dark page too, and every colour of a line
has a contrast of at least 3 to 1 against it.  The colours of one paper's models can be told apart with any of the
three kinds of colour blindness (``tests/artifacts/test_palette.py``); settings of one model share its colour and
differ by line or marker.  No other file names a colour.
"""

GROUND = "#FFFFFF"
INK, BLUE, VERMILION, GREEN, PURPLE, VIOLET, SKY, GREY = (
    "#222222",
    "#0065A8",
    "#D55E00",
    "#009E73",
    "#A02C6E",
    "#7E3FE0",
    "#3D97D6",
    "#7F7F7F",
)
RULE = "#8C8C8C"
"""Lines that mark a place: zero, a threshold, the setting of training."""
FLOOR = "#5F5F5F"
PAPER = "#555555"
"""A printed number that belongs to no model of the figure, and the legend's entry for all of them."""
SOFT = "#555555"
"""Text below a figure."""
SERIES = (INK, VERMILION, BLUE, GREEN, PURPLE, SKY, GREY)
"""What is drawn side by side and is no model: kinds of a clip."""
RUNS = (VERMILION, GREEN, PURPLE, VIOLET)
"""The runs of a sweep over one model, beside the run that has the colour of the model."""
ORDERED, SIGNED, PICTURE = "viridis", "PRGn_r", "gray"
"""Maps from a number to a colour: from low to high, from low over a middle to high, and the grey of a picture."""

MODELS = {
    "cem": {
        "llama": INK,
        "plain": INK,
        "gated": VIOLET,
        "attention": VERMILION,
        "attention_plain": VERMILION,
        "none": VERMILION,
        "shared": VERMILION,
        "per_head": VERMILION,
        "attention_t2": VERMILION,
        "mlp": GREEN,
        "mlp_matched": PURPLE,
        "mlp_t2": GREEN,
        "full": BLUE,
        "t1": BLUE,
        "t2": BLUE,
        "t4": BLUE,
        "t8": BLUE,
    },
    "cet": {"ep": BLUE, "tbpte": VERMILION},
    "ebt": {
        "transformer": INK,
        "times": GREY,
        "feed_forward": INK,
        "dit": INK,
        "recurrent": VERMILION,
        "rnn": VIOLET,
        "ebt": BLUE,
        "s1": BLUE,
        "s2": PURPLE,
        "ebt_free": SKY,
    },
    "ngpt": {"gpt": INK, "gpt_qk": VERMILION, "ngpt": BLUE},
    "nrgpt": {"gpt": INK, "rgpt_parallel": VERMILION, "ff1": BLUE, "ff2w": GREEN},
}
"""By paper, and by the value of the axis of models."""
SETTINGS = {
    "cem": (
        ("attention", "attention_t2", "attention_plain", "none", "shared", "per_head"),
        ("mlp", "mlp_t2"),
        ("full", "t1", "t2", "t4", "t8"),
        ("llama", "plain"),
    ),
    "ebt": (("ebt", "s1"), ("transformer", "feed_forward", "dit")),
}
"""By paper, the names that settings of one model have; or plain Transformers of several tasks.  They share a colour."""


def model(artifact: str, name: str) -> str:
    """Return the colour of a model.

    Args:
        artifact: the id of an artifact, or of its paper.
        name: the value of the artifact's axis of models.

    Raises:
        KeyError: the palette has no such model; the message says where to add it.
    """
    paper = artifact.partition("/")[0]
    try:
        return MODELS[paper][name]
    except KeyError:
        raise KeyError(f"{artifact}: model '{name}' has no colour; add it to MODELS['{paper}'] in {__name__}") from None
