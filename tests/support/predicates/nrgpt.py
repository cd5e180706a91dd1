"""Made-up records for NRGPT's predicates."""

import math
from collections.abc import Callable, Mapping, Sequence

from paper_repro.papers.nrgpt.table7 import ROWS
from paper_repro.tests.support.made_up import Made, Place
from paper_repro.tests.support.predicates.case import Case

KNOWN = Made(known=True)


def traced(seeds: int = 3, **metrics: float) -> Made:
    return Made(lambda place, seed: metrics, seeds=tuple(range(seeds)))


def settling(late_change: float) -> Made:
    return Made(lambda place, seed: {"late_change": late_change}, noise=0.1)


def energies(*tokens: Sequence[float], seeds: int = 3) -> Made:
    """The recorded energies of tokens over the steps."""

    def files(place: Place, seed: int) -> Mapping[str, bytes]:
        rows = [
            f"{step},{token},{value},0,0"
            for step, values in enumerate(zip(*tokens, strict=True))
            for token, value in enumerate(values)
        ]
        return {"energies.csv": "\n".join(["step,token,total,attention,feed_forward", *rows]).encode()}

    return Made(files=files, seeds=tuple(range(seeds)))


FIRST = [4.0, 3.0] + [2.0] * 8
"""The first token settles after two steps."""
FALLING = [9.0, 8.0, 7.0, 6.0, 5.0, 4.5, 4.2, 4.1, 4.0, 4.0]
SIZES = {"8": 1e3, "12": 3e3, "16": 1e4, "25": 3e4, "40": 1e5, "64": 3e5}


def transitions(ff1: float, ff2w: float) -> Made:
    """Accuracies rise at so many times the recurrent GPT's 10,000 parameters."""
    place_of = {"rgpt_parallel": 1.0, "ff1": ff1, "ff2w": ff2w}

    def metrics(place: Place, seed: int) -> Mapping[str, float]:
        behind = math.log10(SIZES[place["width"]] / (1e4 * place_of[place["model"]]))
        return {"accuracy": 0.98 / (1 + math.exp(-6 * behind))}

    return Made(metrics, noise=1e-3, parameters=lambda place: int(SIZES[place["width"]]))


def shakespeare(
    level: Callable[[Place], float], gap: Callable[[Place], float] = lambda place: 0.1, scale: str = "cpu"
) -> Made:
    def metrics(place: Place, seed: int) -> Mapping[str, float]:
        return {"best_val_loss": level(place), "val_loss": level(place), "train_loss": level(place) - gap(place)}

    sizes = {"w32": 1000, "w64": 4000, "w128": 16000}
    return Made(metrics, parameters=lambda place: sizes.get(place["width"], 64000), scale=scale)


def is_nrgpt(place: Place) -> bool:
    return place["model"].startswith("ff")


def spread(ours: float, other: float) -> Made:
    """How far the rates of one width lie apart."""
    return shakespeare(lambda place: 2.0 + (ours if is_nrgpt(place) else other) * (place["setting"] == "lr2e-3"))


def costs(**metrics: float) -> Made:
    return Made(lambda place, seed: metrics, noise=0.0, known=True)


def sizes(gpt: float, ff2w: float) -> Made:
    names = ("untied", "tied", "without_positions")

    def metrics(place: Place, seed: int) -> Mapping[str, float]:
        return {f"paper_parameters_{name}": ff2w if place["model"] == "ff2w" else gpt for name in names}

    return Made(metrics, noise=0.0)


def scores(**metrics: float) -> Made:
    return Made(lambda place, seed: metrics, noise=0.0)


IDEAL = {"perplexity": 30.0, "distinct_1": 0.7, "distinct_2": 0.9, "gqs_paper": 0.93, "apcs_lines": 0.4}


def answers(prefix: str, ours: float, other: float) -> Made:
    columns = (
        "astronomy science computer_science economics medicine math global_facts clinical_knowledge abstract_algebra"
    )
    return Made(
        lambda place, seed: {
            f"{prefix}_{name}": ours if place["model"] == "ff2w" else other for name in columns.split()
        }
    )


def printed_answers(ours: float) -> Made:
    columns = ("astronomy", "science", "computer_science", "economics", "medicine", "math", "global_facts")

    def printed(place: Place) -> Mapping[str, float]:
        return {f"mmlu_generated_{name}": ours if place["model"] == "ff2w" else 30.0 for name in columns}

    return Made(printed=printed)


def grids(grid: str, inside: float) -> Made:
    rows = {f"{grid}/{row}": inside for row in ROWS}
    return Made(lambda place, seed: {**rows, f"ours_in_{grid}": inside}, noise=0.0)


CASES = {
    "nrgpt.fig2.energy_ends_lower": Case("nrgpt/fig2", traced(72, ends_lower=1.0), traced(ends_lower=0.98)),
    "nrgpt.fig2.energy_settles": Case("nrgpt/fig2", settling(0.02), settling(0.2)),
    # It holds only of so many models that fewer than one in twenty can have a rise.
    "nrgpt.fig2.first_token_monotone": Case(
        "nrgpt/fig2", traced(72, first_tokens_rising=0.0), traced(first_tokens_rising=0.05)
    ),
    "nrgpt.fig2.descent_after_predecessors": Case(
        "nrgpt/fig2",
        # The third token rises while the second moves, and settles before it does: it says nothing.
        energies(FIRST, FALLING, [4.0, 5.0] + [2.0] * 8, seeds=72),
        energies(FIRST, [9.0, 8.0, 7.0, 7.1, 5.0, 4.5, 4.2, 4.1, 4.0, 4.0]),
    ),
    "nrgpt.fig2.energy_bounded": Case("nrgpt/fig2", traced(bound_use=0.9), traced(bound_use=1.1)),
    "nrgpt.fig6.unconstrained_settles": Case("nrgpt/fig6", settling(0.02), settling(0.2)),
    "nrgpt.fig3.learns_the_answers": Case("nrgpt/fig3", transitions(1.1, 1.2), transitions(1.1, 50.0)),
    "nrgpt.fig3.listops_parity": Case("nrgpt/fig3", transitions(1.1, 1.2), transitions(5.0, 5.0)),
    "nrgpt.fig3.listops_order": Case("nrgpt/fig3", transitions(2.0, 4.0), transitions(0.5, 0.25)),
    "nrgpt.fig4.shakespeare_parity": Case(
        "nrgpt/fig4",
        shakespeare(lambda place: 1.4 if is_nrgpt(place) else 1.5),
        shakespeare(lambda place: 1.7 if is_nrgpt(place) else 1.5),
    ),
    "nrgpt.fig4.shakespeare_no_overfit": Case(
        "nrgpt/fig4",
        shakespeare(lambda place: 1.5, lambda place: 0.1 if is_nrgpt(place) else 0.5, "gpu"),
        shakespeare(lambda place: 1.5, lambda place: 0.5 if is_nrgpt(place) else 0.1, "gpu"),
    ),
    "nrgpt.fig4.hyperparameter_sensitivity": Case("nrgpt/fig4", spread(0.5, 0.1), spread(0.1, 0.5)),
    "nrgpt.flops.flops_1_to_2": Case("nrgpt/flops", costs(ratio=1.5), costs(ratio=3.0)),
    "nrgpt.flops.flops_1_to_2_one_head": Case("nrgpt/flops", costs(ratio=2.0), costs(ratio=0.9)),
    "nrgpt.flops.one_head_attention_about_the_same": Case(
        "nrgpt/flops", costs(attention_ratio=1.05), costs(attention_ratio=0.5)
    ),
    "nrgpt.flops.one_head_attention_fewer": Case("nrgpt/flops", costs(attention_ratio=0.5), costs(attention_ratio=1.5)),
    "nrgpt.flops.many_heads_cost_more": Case("nrgpt/flops", costs(attention_ratio=2.0), costs(attention_ratio=0.5)),
    "nrgpt.flops.feed_forward_twice": Case("nrgpt/flops", costs(feed_forward_ratio=2.1), costs(feed_forward_ratio=1.0)),
    "nrgpt.flops.ff1_8d_feed_forward_doubles": Case(
        "nrgpt/flops", costs(feed_forward_ratio=2.1), costs(feed_forward_ratio=3.0)
    ),
    "nrgpt.flops.heads_add_parameters": Case("nrgpt/flops", KNOWN, costs(parameters=1000.0)),
    "nrgpt.table2.fewer_parameters": Case("nrgpt/table2", sizes(124e6, 90e6), sizes(124e6, 100e6)),
    "nrgpt.table4.half_the_parameters": Case("nrgpt/table4", sizes(4e5, 2e5), sizes(4e5, 3e5)),
    "nrgpt.table3.shakespeare_is_ideal": Case("nrgpt/table3", scores(**IDEAL), scores(**IDEAL | {"perplexity": 99.0})),
    "nrgpt.table3.prose_is_ideal": Case("nrgpt/table3", scores(**IDEAL), scores(**IDEAL | {"distinct_1": 0.5})),
    "nrgpt.table3.shuffled_words_score_high": Case("nrgpt/table3", scores(gqs_paper=0.93), scores(gqs_paper=0.5)),
    "nrgpt.table3.gqs_is_good_for_nonsense": Case("nrgpt/table3", scores(gqs_paper=0.93), scores(gqs_paper=0.5)),
    "nrgpt.table6.beyond_the_questions": Case(
        "nrgpt/table6", answers("mmlu_generated", 90.0, 30.0), answers("mmlu_generated", 30.0, 90.0)
    ),
    "nrgpt.table6.beyond_the_questions_by_log_likelihood": Case(
        "nrgpt/table6", answers("mmlu", 90.0, 30.0), answers("mmlu", 30.0, 90.0)
    ),
    "nrgpt.table6.printed_beyond_the_questions": Case("nrgpt/table6", printed_answers(60.0), printed_answers(10.0)),
    "nrgpt.table7.best_rows_in_table7": Case("nrgpt/table7", grids("table7", 1.0), grids("table7", 0.0)),
    "nrgpt.table7.best_rows_in_sweep": Case("nrgpt/table7", grids("sweep", 1.0), grids("sweep", 0.0)),
    "nrgpt.table7.ours_in_table7": Case("nrgpt/table7", grids("table7", 1.0), grids("table7", 0.0)),
    "nrgpt.table7.ours_in_sweep": Case("nrgpt/table7", grids("sweep", 1.0), grids("sweep", 0.0)),
}
