"""The clusters of a launch that have not started: waves start them, and running blocks may take over their work."""

from dataclasses import dataclass, field

import numpy as np

_RANDOM_SHARE = 0.75
_STREAM = 0xC1C  # apart from the random numbers of the waves' machines


@dataclass
class PendingClusters:
    """The CTAs [first, end) in the order in which they run; `cluster` CTAs start, or are cancelled, together.

    A request to cancel succeeds or fails, as hardware chooses. "eager" grants every request while a cluster is left, and
    "lazy" none. "random" grants three of four, takes the first or the last cluster left, and draws the size of waves.
    """

    first: int
    end: int
    cluster: int
    policy: str
    seed: int
    choice: np.random.Generator = field(init=False)

    def __post_init__(self) -> None:
        self.choice = np.random.Generator(np.random.Philox((self.seed << 12) + _STREAM))

    def start(self, most: int, *, leaves_some: bool) -> tuple[int, int]:
        """Return the first CTA and the number of CTAs of the next wave, at most `most`. With `leaves_some`, half of the
        clusters wait for a later wave, or a random number of them."""
        left = (self.end - self.first) // self.cluster
        clusters = min(most // self.cluster, left)
        if leaves_some and self.policy == "random":
            clusters = int(self.choice.integers(1, clusters + 1))
        elif leaves_some:
            clusters = min(clusters, -(-left // 2))
        first, self.first = self.first, self.first + clusters * self.cluster
        return first, self.first - first

    def cancel(self) -> int | None:
        """Return the first CTA of a cluster that will not start any more; None if the request fails."""
        is_random = self.policy == "random"
        if self.first == self.end or self.policy == "lazy" or (is_random and self.choice.random() >= _RANDOM_SHARE):
            return None
        if is_random and self.choice.random() < 0.5:
            self.end -= self.cluster
            return self.end
        self.first += self.cluster
        return self.first - self.cluster
