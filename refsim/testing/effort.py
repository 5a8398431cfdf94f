"""The number of cases of a law: the profile's, or a stated share of it for expensive cases."""

from hypothesis import settings


def share(part: float) -> settings:
    """Return settings for a law whose cases are expensive or cheap: `part` of the profile's cases, at least one.

    It decorates a law; all other settings, including the seed, are the profile's. With `quick`, 25 cases a law,
    `share(1 / 5)` is 5, with `ci` it is 40; without --refsim-profile it is a share of Hypothesis's own 100.
    """
    return settings(max_examples=max(1, round(part * settings().max_examples)))
