"""nGPT, figures 6 and 14: the eigen learning rates and scaling factors that training arrived at.

Letters: L layers.  All values are effective ones, stored * init / scale (section 2.5); s_u and s_nu without sqrt(D).
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from paper_repro.cells.tasks import Findings
from paper_repro.datamodules.counter_based import CounterBasedDataModule
from paper_repro.models.llama import RotaryLanguageModel, Scale
from paper_repro.probes.inspection.tools import branches, counts, document, inspected, rounded, shares, symmetric_edges
from paper_repro.training.module import PaperModule

ATTACHMENT = "scales.json"
RATES = {"alpha_A": "attention_rate", "alpha_M": "feed_forward_rate"}
"""The eigen learning rates, and what a block calls them."""
ALPHA_EDGES = [round(0.02 * index, 2) for index in range(101)]
SCALE_EDGES = symmetric_edges(unit=1.0, reach=500.0, step=0.05)


@dataclass(frozen=True)
class Scales:
    """Inspects the learned vectors, or single numbers, of nGPT; of a model with some of them alone, these.

    * ``mean_<vector>``, ``<vector>`` of alpha_A, alpha_M (absolute values), s_qk, s_u, s_nu, s_z: mean over the layers
      of the mean over the vector.  A GPT has none of them, a GPT with QK norm has s_qk.
    * ``mean_abs_s_qk``: the same of |s_qk|.  Its sign has no effect, for s_qk multiplies queries and keys alike, and
      training at a high rate turns the sign of many elements.
    * ``sqk_spread``: mean |s_qk| of the layer where it is largest over that of the layer where it is smallest.

    The attachment holds the means by layer, of s_z its one, and a histogram of each vector over all layers.
    """

    def measure(self, module: PaperModule, data: CounterBasedDataModule, seed: int) -> Findings:
        """Inspect ``module.model``; of the data nothing is read.

        Raises:
            UsageError: a model of another family than nGPT and its baseline.
        """
        vectors = effective_scales(inspected(module))
        means = {name: [float(vector.mean()) for vector in found] for name, found in vectors.items()}
        metrics = {f"mean_{name}": sum(values) / len(values) for name, values in means.items()}
        if "s_qk" in vectors:
            sizes = [float(vector.abs().mean()) for vector in vectors["s_qk"]]
            means["|s_qk|"], metrics["mean_abs_s_qk"] = sizes, sum(sizes) / len(sizes)
            metrics["sqk_spread"] = max(sizes) / max(min(sizes), torch.finfo(torch.float32).tiny)
        content = {
            "edges": {name: ALPHA_EDGES if name in RATES else SCALE_EDGES for name in vectors},
            "means": {name: rounded(values) for name, values in means.items()},
            "shares": {
                name: shares(counts(torch.cat(found), ALPHA_EDGES if name in RATES else SCALE_EDGES))
                for name, found in vectors.items()
            },
        }
        return Findings(metrics, {ATTACHMENT: document(content)})


def effective_scales(model: RotaryLanguageModel) -> dict[str, list[Tensor]]:
    """Map each vector to its effective values by layer, float64 (of s_z one entry); what the model has not is
    left out.
    """
    found: dict[str, list[Tensor]] = {}

    def add(scales: Mapping[str, Scale | None]) -> None:
        for name, scale in scales.items():
            if scale is not None:
                values = scale().detach().double()
                found.setdefault(name, []).append(values.abs() if name in RATES else values)

    for block, (attention, feed_forward) in zip(model.blocks, branches(model), strict=True):
        add({name: getattr(block, attribute, None) for name, attribute in RATES.items()})
        add({"s_qk": attention.scale, "s_u": feed_forward.scale_u, "s_nu": feed_forward.scale_nu})
    add({"s_z": getattr(model, "scale_z", None)})
    return found
