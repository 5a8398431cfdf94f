"""How many cases a law is given: what the profile of the run says, or a stated share of it where a case is dear."""

from hypothesis import settings


def share(part: float) -> settings:
    """Settings for a law whose cases cost more, or less, than most: `part` of the profile's cases, at least one.

    It decorates a law; everything else, the seed among it, is the profile's. With `quick`, 25 cases a law, `share(1 / 5)`
    is 5, with `ci` it is 40; without --refsim-profile it is a share of Hypothesis's own 100.
    """
    return settings(max_examples=max(1, round(part * settings().max_examples)))
