import pytest
import torch

from paper_repro.metrics.ranks import auroc, grouped_rank_correlation, rank_correlation


def test_the_area_is_the_share_of_pairs_in_order_with_ties_as_halves() -> None:
    negatives, positives = torch.tensor([-400.0, 2.0, 2.0, 5.0]), torch.tensor([2.0, 7.0, 900.0])
    pairs = [(high > low) + 0.5 * (high == low) for high in positives.tolist() for low in negatives.tolist()]
    assert auroc(negatives, positives) == pytest.approx(sum(pairs) / len(pairs), abs=1e-6)
    assert auroc(positives, negatives) == pytest.approx(1 - sum(pairs) / len(pairs), abs=1e-6)
    assert auroc(negatives, torch.tensor([torch.inf])) == 1


def test_the_interval_resamples_groups_not_values() -> None:
    generator = torch.Generator().manual_seed(0)
    centers = torch.randn(20, 2, generator=generator)
    copies = [center.repeat(50, 1) + 1e-3 * torch.randn(50, 2, generator=generator) for center in centers]
    left, right = ([group[:, side] for group in copies] for side in (0, 1))
    found = grouped_rank_correlation(left, right, seed=1, resamples=200)
    assert found.low < found.value < found.high and found.high - found.low > 0.4  # 1,000 values, 20 of them independent
    assert found.value == pytest.approx(rank_correlation(torch.cat(left), torch.cat(right)))
    assert found == grouped_rank_correlation(left, right, seed=1, resamples=200)
