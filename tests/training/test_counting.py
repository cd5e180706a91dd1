import pytest
import torch
from torch import Tensor, nn

from paper_repro.base.configs import compose
from paper_repro.tables import spec
from paper_repro.tests.training.doubles import Energetic
from paper_repro.training.counting import count_flops, measure, num_parameters, peak_bytes


def meta(*shape: int) -> Tensor:
    return torch.empty(*shape, device="meta")


MATRIX, WIDER, SAME, VECTOR, SHORT = meta(3, 4), meta(4, 5), meta(3, 5), meta(4), meta(3)


@pytest.mark.parametrize(
    ("product", "multiply_adds"),
    [
        (lambda: torch.mm(MATRIX, WIDER, out=SAME), 60),
        (lambda: SAME.addmm_(MATRIX, WIDER), 60),
        (lambda: meta(2, 3, 5).baddbmm_(meta(2, 3, 4), meta(2, 4, 5)), 120),
        (lambda: MATRIX @ VECTOR, 12),
        (lambda: VECTOR @ WIDER, 20),
        (lambda: VECTOR @ VECTOR, 4),
        (lambda: SHORT.addmv_(MATRIX, VECTOR), 12),
        (lambda: torch.einsum("i,j->ij", SHORT, VECTOR) + MATRIX, 0),
    ],
)
def test_a_product_counts_two_flops_a_multiply_add_also_where_it_writes_in_place(product, multiply_adds):
    assert count_flops(product) == 2 * multiply_adds


@pytest.mark.parametrize("device", ["meta", "cpu"])
@pytest.mark.parametrize("functional", [True, False])
def test_a_derivative_inside_a_module_is_counted_and_its_derivative_too(functional: bool, device: str) -> None:
    """With B = 3 rows of 4 numbers and 8 hidden ones, A x takes 96 multiply-adds and w . h takes 24.

    The inner gradient takes as many again: w for each row, and its product with A.  Its backward pass takes four
    products: two of that with A (96 each), one for w (24), and one for A through the slope of tanh (96).
    """
    with torch.device(device):
        model, x = Energetic(4, 8, functional), torch.zeros(3, 4)
    inner = 2 * (96 + 24)
    backward = 96 + 96 + 24 + 96
    with torch.no_grad():
        assert count_flops(lambda: model(x)) == 2 * inner
    # autograd.grad asks for x as a leaf, which takes a product with A of its own on the way back.
    leaf = 0 if functional else 96
    assert count_flops(lambda: model(x).square().sum().backward()) == 2 * (inner + backward + leaf)


def test_parameters_are_counted_once_without_frozen_ones_and_without_those_left_out() -> None:
    model = nn.ModuleDict({"one": nn.Linear(3, 4), "two": nn.Linear(3, 4, bias=False), "three": nn.Linear(2, 2)})
    model["two"].weight = model["one"].weight
    model["three"].weight.requires_grad_(False)
    assert num_parameters(model) == 12 + 4 + 2
    assert num_parameters(model, frozen=True) == 12 + 4 + 2 + 4
    assert num_parameters(model, leave_out=["three"], frozen=True) == 12 + 4


def test_the_peak_is_that_of_tensors_alive_at_once_and_a_view_takes_no_memory() -> None:
    def work() -> None:
        for _ in range(3):
            one = torch.empty(1000, device="meta")
            two = one + 1
            del one, two

    assert peak_bytes(work) == 8000
    given = meta(1000, 10)
    assert peak_bytes(lambda: given.mT[2:]) == 0
    assert peak_bytes(lambda: given.mT.exp()[2:]) == 40_000


TABLE3 = {
    "plain": (33_985, 6_758_400),
    "gated": (33_941, 6_732_800),
    "t1": (22_657, 6_732_800),
    "t2": (22_657, 11_084_800),
    "t4": (22_657, 19_788_800),
    "t8": (22_657, 37_196_800),
}
"""Parameters, and multiply-adds of a batch of 200, that round to the digits of CEM's Table 3."""


@pytest.mark.parametrize("model", TABLE3)
def test_parameters_and_flops_of_table_3_are_the_printed_ones(model: str) -> None:
    artifact = spec.load("cem/table3")
    key = (("kernel", "rbf"), ("model", model))
    cost = measure(compose(artifact.experiment, artifact.overrides(key, artifact.scales["paper"])))
    assert (cost.parameters, cost.multiply_adds) == TABLE3[model]
    for name, found in (("parameters", cost.parameters), ("multiply_adds", cost.multiply_adds)):
        column, printed = artifact.columns[name], artifact.printed(key, name)
        assert printed is not None
        assert column.text(found) == f"{printed.mean:.{column.digits}f}{column.unit}"


MEASURED = [
    ("nrgpt/table4", {"model": "gpt"}, 0.3),
    ("nrgpt/table4", {"model": "ff2w"}, 1.0),
    ("nrgpt/fig2", {"model": "ff2w"}, 0.9),
    ("nrgpt/table1", {"model": "gpt"}, 10.9),
    ("nrgpt/table1", {"model": "ff2w"}, 19.0),
    ("ngpt/fig2", {"size": "small", "context": "c4k", "model": "ngpt", "budget": "f20", "lr": "5e-4"}, 15.8),
    ("cem/fig5", {"size": "m256", "lr": "5e-4", "model": "full"}, 22.0),
    ("ebt/fig5", {"model": "transformer", "size": "one", "width": "one", "budget": "one"}, 12.0),
    ("ebt/fig5", {"model": "s1", "size": "one", "width": "one", "budget": "one"}, 33.0),
]
"""The largest memory of a training step at scale paper on an H200, in GiB, uncompiled."""


@pytest.mark.parametrize(("name", "at", "measured"), MEASURED)
def test_the_memory_of_a_gpu_is_counted_within_a_fifth_of_what_was_measured(name, at, measured):
    artifact = spec.load(name)
    key = tuple((axis, at[axis]) for axis in artifact.axes)
    config = compose(artifact.experiment, artifact.overrides(key, artifact.scales["paper"]))
    assert measure(config).memory_bytes / 2**30 == pytest.approx(measured, rel=0.2)
