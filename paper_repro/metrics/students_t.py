"""Student's t distribution; scipy is imported when it is needed. Infinite freedom is the normal distribution."""

import functools
import math


@functools.cache
def half_width(freedom: float, confidence: float) -> float:
    """Return how many standard errors a two-sided interval of this confidence reaches to either side."""
    from scipy.special import ndtri, stdtrit

    share = 0.5 + confidence / 2
    return float(ndtri(share) if math.isinf(freedom) else stdtrit(freedom, share))
