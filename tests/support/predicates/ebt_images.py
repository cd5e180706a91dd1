"""Made-up records for EBT's predicates on images, video and Sudoku."""

from collections.abc import Mapping

from paper_repro.tests.support.made_up import Made, Place
from paper_repro.tests.support.predicates.case import Case

INDEX = {"less": 1, "one": 2, "more": 3, "double": 4}
FLOORS = {"noised": 10.0, "wiener": 12.0, "total_variation": 12.0, "pixels": 10.0}


def video(ebt: tuple[float, float], transformer: tuple[float, float]) -> Made:
    """Losses that fall as a power of the width: (level at the smallest width, power)."""
    of = {"ebt": ebt, "transformer": transformer}

    def metrics(place: Place, seed: int) -> Mapping[str, float]:
        if place["model"] not in of:
            return {"test_loss": 50.0}
        level, power = of[place["model"]]
        width = INDEX[place["width"]]
        return {"test_loss": level * width**-power, "trunk_parameters": 1000.0 * width**2}

    return Made(metrics, counted=lambda place: {"width": 32.0 * INDEX.get(place["width"], 1)})


def clips(**of_ebt: float) -> Made:
    return Made(lambda place, seed: {"test_loss": 1.0, **of_ebt} if place["model"] == "ebt" else {"test_loss": 2.0})


def denoised(ebt: float, dit: float, passes: tuple[float, float, float] = (0.0, 0.1, 0.2)) -> Made:
    """PSNRs: of EBT by passes of three steps at 1 % of the evaluations of DiT's passes, whose times are 300."""

    def metrics(place: Place, seed: int) -> Mapping[str, float]:
        psnr = {"ebt": ebt, "dit": dit}.get(place["model"], FLOORS.get(place["model"], 0.0))
        names = ("in_psnr", "out_psnr", "in_psnr_equal", "out_psnr_equal", "in_psnr_double", "out_psnr_double", "top_1")
        return dict.fromkeys(names, psnr)

    def files(place: Place, seed: int) -> Mapping[str, bytes]:
        rows = []
        for level in ("in", "out"):
            for count, more in enumerate(passes, 1):
                if place["model"] == "ebt":
                    rows.append(f"{level},3,{count},{3 * count},{ebt + more + 1e-4 * seed * count}")
                elif place["model"] == "dit":
                    rows.append(f"{level},300,{count},{300 * count},{dit}")
        return {"denoising.csv": "\n".join(["level,steps,passes,nfe,psnr", *rows]).encode()} if rows else {}

    return Made(metrics, files=files)


def boards(ebt: float, rnn: float, feed_forward: float) -> Made:
    solved = {"ebt": ebt, "rnn": rnn, "feed_forward": feed_forward}
    blanks = {"floor": 0.1}
    return Made(
        lambda place, seed: {
            "boards": solved.get(place["model"], 0.0),
            "blanks": blanks.get(place["model"], 0.8),
        }
    )


PSNR = Case("ebt/table4", denoised(22.0, 20.0), denoised(20.0, 22.0))
CASES = {
    "ebt.figB1.video_scaling": Case("ebt/figB1", video((20.0, 0.5), (15.0, 0.1)), video((15.0, 0.1), (20.0, 0.5))),
    "ebt.figB2.frame_energy_is_uncertainty": Case("ebt/figB2", clips(energy_rank=0.5), clips(energy_rank=-0.5)),
    "ebt.figB2.still_clips_have_lower_energy": Case("ebt/figB2", clips(still_fall=0.5), clips(still_fall=-0.5)),
    "ebt.figB2.a_cut_raises_the_energy": Case("ebt/figB2", clips(cut_rise=0.5), clips(cut_rise=-0.5)),
    "ebt.figB6.fewer_passes_for_a_psnr": Case("ebt/figB6", denoised(22.0, 20.0), denoised(20.0, 22.0)),
    "ebt.figB6.more_passes_help_at_more_noise": Case(
        "ebt/figB6", denoised(20.0, 20.0), denoised(20.0, 20.0, (0.0, 0.1, 0.0))
    ),
    "ebt.table4.denoise_fewer_passes": PSNR,
    "ebt.table4.better_at_equal_evaluations": PSNR,
    "ebt.table4.better_at_equal_time": PSNR,
    "ebt.table4.better_features": PSNR,
    "ebt.table5.sudoku_order": Case("ebt/table5", boards(0.5, 0.3, 0.1), boards(0.1, 0.3, 0.5)),
}
