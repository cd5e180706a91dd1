"""Made-up records for EBT's predicates on language and on printed numbers; floors are far above all models."""

import random
from collections.abc import Callable, Mapping

from paper_repro.artifacts.artifact import Number
from paper_repro.tests.support.made_up import Made, Place
from paper_repro.tests.support.predicates import ebt_images
from paper_repro.tests.support.predicates.case import Case

FLOOR = 9.0
SETS = ("gsm8k", "dyck-generated")
SCALED = {"half": 0.5, "one": 1.0, "more": 1.5, "double": 2.0, "four": 4.0, "eight": 8.0}
LENGTHS = ("one", "twice", "fourfold")


def noise(*of: object) -> float:
    """Return a number between 0 and 1 that only its arguments decide."""
    return random.Random(repr(of)).random()


def losses(of: Callable[[Place], float], **others: float) -> Made:
    return Made(lambda place, seed: {"val_loss": FLOOR if place["model"] == "floor" else of(place), **others})


def falling(s1: float, transformer: float) -> Made:
    """Losses that fall as powers of data, batch size and depth."""
    power = {"s1": s1, "transformer": transformer}

    def loss(place: Place, tokens: float = 1.0) -> float:
        if place["model"] == "floor":
            return FLOOR
        return 5.0 * (SCALED[place["batch"]] * SCALED[place["depth"]] * tokens) ** -power[place["model"]]

    steps = range(100, 1501, 100)
    return Made(
        lambda place, seed: {"val_loss": loss(place)},
        curves=lambda place, seed: {
            "val_loss": [(step, loss(place, step / 1500) * (1 + 1e-4 * noise(place, seed, step))) for step in steps]
        },
    )


def scaled(s1: float, transformer: float, level: float = 5.0, floor: float = FLOOR) -> Made:
    """Losses that fall as powers of parameters and of width; EBT's at the base is ``level``, Transformer++'s 5."""
    power = {"s1": s1, "transformer": transformer}

    def metrics(place: Place, seed: int) -> Mapping[str, float]:
        if place["model"] == "floor":
            return {"val_loss": floor}
        if place["model"] == "times":
            return {"ratio_own": 2.0}
        size = SCALED[place["size"]] * SCALED[place["width"]] * SCALED[place["budget"]]
        start = level if place["model"] == "s1" else 5.0
        own = 2.0 if place["model"] == "s1" else 1.0
        costs = {"trunk_parameters": 1e5 * SCALED[place["size"]], "step_flops": own * 1e9 * SCALED[place["size"]]}
        return {"val_loss": start * size ** -power[place["model"]], **costs}

    return Made(metrics, noise=1e-6, counted=lambda place: {"width": 64.0 * SCALED[place["width"]]})


def thinking(loss: Callable[[Place, str, int, int], float], **metrics: float) -> Made:
    """Losses over sets, steps and samples, beside the record."""

    def files(place: Place, seed: int) -> Mapping[str, bytes]:
        rows = [
            f"{name},{steps},{samples},"
            f"{loss(place, name, steps, samples) + 1e-4 * noise(place, seed, name, steps, samples)},4.0"
            for name in ("validation", *SETS)
            for steps in (1, 2, 3, 4, 6)
            for samples in (1, 2, 10)
        ]
        return {"thinking.csv": "\n".join(["set,steps,samples,loss,oracle", *rows]).encode()}

    known = {"gsm8k_loss": 5.0, "dyck-generated_loss": 6.0, **metrics}
    return Made(
        lambda place, seed: {**known, "validation_loss": FLOOR if place["model"] == "floor" else 4.0}, files=files
    )


def more_where_it_is_foreign(sign: float) -> Made:
    gain = {"validation": 0.2, "gsm8k": 0.2 + 0.1 * sign, "dyck-generated": 0.2 + 0.15 * sign}
    return thinking(lambda place, name, steps, samples: 5.0 - gain[name] * (steps == 6))


def steps_gain(sign: float) -> Made:
    return thinking(lambda place, name, steps, samples: 5.0 - sign * 0.05 * steps)


def samples_gain(first: float, last: float) -> Made:
    """What ten samples gain, after the shortest and after the longest training."""
    gain = {"one": first, "fourfold": last}
    return thinking(lambda place, name, steps, samples: 5.0 - gain.get(place["length"], first) * (samples == 10))


def against_recurrent(own: float) -> Made:
    return thinking(lambda place, name, steps, samples: own if place["model"] == "s2" else 5.0)


def added_by_data(sign: float) -> Made:
    """What ten samples gain beyond two, the more after the longer training."""
    return thinking(
        lambda place, name, steps, samples: 5.0 - (0.1 + sign * 0.02 * LENGTHS.index(place["length"])) * (samples == 10)
    )


def uncertain(**of_ebt: float) -> Made:
    names = ("gsm8k", "dyck-generated")
    scores = {
        f"{name}_{score}_auroc": value
        for name in names
        for score, value in {"energy": of_ebt.pop("energy", 0.7), "entropy": 0.6}.items()
    }
    known = {"validation_loss": 4.0, "energy_rank": 0.5, "entropy_rank": 0.3, **scores, **of_ebt}
    return Made(lambda place, seed: {**known, **({"validation_loss": FLOOR} if place["model"] == "floor" else {})})


def energies(auroc: float) -> Made:
    scores = {f"{name}_energy_auroc": auroc for name in SETS} | {f"{name}_entropy_auroc": 0.6 for name in SETS}
    return Made(
        lambda place, seed: {"validation_loss": FLOOR if place["model"] == "floor" else 4.0, **scores},
    )


def curved(s2: float, start: float) -> Made:
    """S1's loss falls as data to the power of 0.2 from 5 on, S2's with the power and the start given."""
    steps = range(100, 1501, 100)

    def loss(place: Place, share: float, seed: int = 0) -> float:
        if place["model"] == "floor":
            return FLOOR
        return (start * share ** -(s2 + 1e-4 * seed)) if place["model"] == "s2" else 5.0 * share**-0.2

    return Made(
        lambda place, seed: {"val_loss": loss(place, 1.0)},
        curves=lambda place, seed: {
            "val_loss": [(step, loss(place, step / 1500, seed) * (1 + 1e-5 * seed)) for step in steps]
        },
    )


def techniques(best: Mapping[str, float], longer: Mapping[str, float]) -> Made:
    """Gains by technique; those not named gain 10 with verification and 5 without."""

    def metrics(place: Place, seed: int) -> Mapping[str, float]:
        if place["model"] == "floor":
            return {"validation_loss": FLOOR}
        gains = {"best": best.get(place["technique"], 10.0), "longer": longer.get(place["technique"], 5.0)}
        return {"validation_loss": 4.0, **{f"bigbench-dyck_{kind}_gain": value for kind, value in gains.items()}}

    return Made(metrics)


OWN = ("dyck-generated", "listops", "python", "shakespeare")
SHARES = {"transformer": 4.0, "transformer_half": 4.3, "transformer_quarter": 4.6, "transformer_fifth": 5.0}


def shifted(pretraining: float, other: float) -> Made:
    """EBT's losses; a Transformer++ has 1 more on other sets than in pretraining, of which it has less when shorter."""

    def metrics(place: Place, seed: int) -> Mapping[str, float]:
        known = SHARES.get(place["model"], FLOOR)
        own, there = (pretraining, other) if place["model"] == "s2" else (known, known + 1.0)
        return {"validation_loss": own, **{f"{name}_loss": there for name in OWN}}

    return Made(metrics)


SIZES = ("xxs", "xs", "small", "medium", "large", "xl")
KNOWN = Made(known=True)


def flops(ebt: float, transformer: float) -> Made:
    """Decades of FLOPs between one size and the next: the fewer, the larger the exponent over them."""
    decades = {"ebt": ebt, "transformer": transformer}
    return Made(
        lambda place, seed: {"flops": 1e16 * 10 ** (decades[place["model"]] * SIZES.index(place["size"]))},
        noise=0.0,
        known=True,
    )


def printed_losses(ebt: float) -> Made:
    def printed(place: Place) -> Mapping[str, Number]:
        level = ebt if place["model"] == "ebt" else 4.0
        spread = 0.01 if place["model"] == "ebt" else 0.02
        return {"loss": Number(level, spread, ((0, level), (1, level + spread), (2, level - spread)))}

    return Made(known=True, printed=printed)


def rebuilt(millions: float) -> Made:
    return Made(
        lambda place, seed: {"parameters_rebuilt": millions * 1e6},
        noise=0.0,
        known=True,
        printed=lambda place: {"parameters_rebuilt": 10.0},
    )


def weights(name: str, share: float) -> Made:
    """A step's cost over Transformer++'s, as a share of the rule's."""
    steps = {"one_step": 1, "two_steps": 2, "time_embed": 2}
    return Made(lambda place, seed: {name: share * steps.get(place["model"], 1) * 20 / 6}, noise=0.0, known=True)


RATIOS = {
    "one_step": {"ratio_own": 3.92, "memory_ratio_own": 1.77, "first_ratio_own": 1.77},
    "two_steps": {"ratio_own": 7.78, "memory_ratio_own": 2.85, "first_ratio_own": 3.24},
}


def costs(factor: float) -> Made:
    def metrics(place: Place, seed: int) -> Mapping[str, float]:
        return {name: factor * value for name, value in RATIOS.get(place["model"], {}).items()}

    return Made(metrics, noise=1e-3)


def second_step(factor: float) -> Made:
    return Made(lambda place, seed: {"ratio_own": 3.0 * (factor if "two" in place["model"] else 1.0)}, noise=1e-3)


def settings(value: float) -> Made:
    return Made(lambda place, seed: {"value": value}, noise=0.0, known=True)


def warmup(steps: float) -> Made:
    return Made(known=True, printed=lambda place: {"value": steps} if place["item"] == "warmup_steps" else {})


CASES = {
    "ebt.fig4.data_batch_depth": Case("ebt/fig4", falling(0.2, 0.1), falling(0.1, 0.2)),
    "ebt.fig5.rate_over_parameters_and_flops": Case("ebt/fig5", scaled(0.2, 0.1), scaled(0.1, 0.2)),
    "ebt.fig5.rate_over_width": Case("ebt/fig5", scaled(0.2, 0.1), scaled(0.1, 0.2)),
    "ebt.fig5.worse_at_small_size": Case("ebt/fig5", scaled(0.1, 0.1, 5.5), scaled(0.1, 0.1, 4.5)),
    "ebt.fig5.better_at_equal_flops": Case("ebt/fig5", scaled(0.1, 0.1, 4.0), scaled(0.1, 0.1, 5.0)),
    "ebt.fig5.better_at_equal_time": Case("ebt/fig5", scaled(0.1, 0.1, 4.0), scaled(0.1, 0.1, 5.0)),
    "ebt.fig6.thinking_more_ood": Case("ebt/fig6", more_where_it_is_foreign(1.0), more_where_it_is_foreign(-1.0)),
    "ebt.fig7.thinking_helps": Case("ebt/fig7", steps_gain(1.0), steps_gain(-1.0)),
    "ebt.fig7.thinking_helps_beyond_training": Case("ebt/fig7", steps_gain(1.0), steps_gain(-1.0)),
    "ebt.fig7.verification_helps": Case("ebt/fig7", samples_gain(0.05, 0.1), samples_gain(0.1, 0.05)),
    "ebt.fig7.below_a_recurrent_transformer": Case("ebt/fig7", against_recurrent(4.9), against_recurrent(5.1)),
    "ebt.fig7.passing_again_does_not_help": Case("ebt/fig7", steps_gain(-1.0), steps_gain(1.0)),
    "ebt.figB3.energy_is_uncertainty": Case("ebt/figB3", uncertain(energy_rank=0.5), uncertain(energy_rank=-0.5)),
    "ebt.figB3.energy_says_more_than_entropy": Case(
        "ebt/figB3", uncertain(energy_rank=0.5), uncertain(energy_rank=0.1)
    ),
    "ebt.figB3.ood_energy": Case("ebt/figB3", energies(0.7), energies(0.3)),
    "ebt.figB3.energy_tells_foreign_texts_better": Case("ebt/figB3", energies(0.7), energies(0.55)),
    "ebt.figB4.less_adversarial_with_data": Case("ebt/figB4", added_by_data(1.0), added_by_data(-1.0)),
    "ebt.figC1.s2_scales_like_s1": Case("ebt/figC1", curved(0.25, 5.5), curved(0.1, 5.5)),
    "ebt.table2.random_step_size_critical": Case(
        "ebt/table2", techniques({"full": 20.0, "fixed_step_size": 1.0}, {}), techniques({"full": 20.0}, {})
    ),
    "ebt.table2.langevin_tradeoff": Case(
        "ebt/table2",
        techniques({"full": 12.0, "no_noise": 12.0}, {"full": 5.0, "no_noise": 10.0}),
        techniques({"full": 12.0, "no_noise": 12.0}, {"full": 10.0, "no_noise": 5.0}),
    ),
    "ebt.table2.all_techniques_are_best": Case(
        "ebt/table2", techniques({"full": 20.0}, {}), techniques({"full": 5.0}, {})
    ),
    "ebt.table2.all_steps_gain_more": Case(
        "ebt/table2", techniques({"all_steps": 20.0}, {}), techniques({"all_steps": 5.0}, {})
    ),
    "ebt.table3.ood_generalisation": Case("ebt/table3", shifted(4.2, 4.8), shifted(4.2, 5.5)),
    "ebt.table3.smaller_shift": Case("ebt/table3", shifted(4.2, 4.8), shifted(4.2, 5.5)),
    "ebt.table3.lower_at_equal_pretraining": Case("ebt/table3", shifted(4.2, 5.0), shifted(4.2, 5.5)),
    "ebt.tableD1.scaling_rate_gap": Case("ebt/tableD1", KNOWN, flops(1.0, 0.5)),
    "ebt.tableD1.scaling_rate_gap_beyond_noise": Case("ebt/tableD1", flops(0.5, 1.0), flops(1.0, 0.5)),
    "ebt.tableD1.scaling_rate_gap_without_the_smallest": Case("ebt/tableD1", flops(0.5, 1.0), flops(1.0, 0.5)),
    "ebt.tableD1.worse_at_small_size": Case("ebt/tableD1", printed_losses(4.5), printed_losses(3.5)),
    "ebt.tableD2.printed_counts_are_of_cut_totals": Case("ebt/tableD2", rebuilt(10.0), rebuilt(12.0)),
    "ebt.tableD2.ebt_adds_one_row": Case(
        "ebt/tableD2", KNOWN, Made(lambda place, seed: {"parameters": 1000.0}, noise=0.0, known=True)
    ),
    "ebt.tableD2.step_costs_as_the_rule_says": Case(
        "ebt/tableD2", weights("weights_concatenated", 1.04), weights("weights_concatenated", 0.9)
    ),
    "ebt.tableD2.split_costs_less_than_the_rule": Case(
        "ebt/tableD2", weights("weights_split", 0.9), weights("weights_split", 1.1)
    ),
    "ebt.tableD3.linear_warmup_and_cosine": Case("ebt/tableD3", KNOWN, settings(7.0)),
    "ebt.tableD3.warmup_fits_the_scaling_runs": Case("ebt/tableD3", warmup(10.0), warmup(1e9)),
    "ebt.tableD5.step_cost": Case("ebt/tableD5", costs(1.1), costs(1.5)),
    "ebt.tableD5.second_step_costs_as_the_first": Case("ebt/tableD5", second_step(2.1), second_step(3.0)),
    **ebt_images.CASES,
}
