"""Two launches that run at once: programmatic serialization starts the second before the first has ended.

The second launch starts as soon as every block of the first has executed griddepcontrol.launch_dependents or exited.
Its code after griddepcontrol.wait runs when the first launch is complete.
"""

from collections.abc import Iterator
from time import monotonic

import numpy as np

from refsim.ptx.checks.undefined import Tracking
from refsim.ptx.execution.masks import UnwrittenReadError
from refsim.ptx.findings.record import LaunchFindings
from refsim.ptx.machine.launch import PreparedLaunch
from refsim.ptx.machine.scheduler import Machine
from refsim.ptx.memory.snapshot import Snapshot

HEAD_START = 512  # turns that the second launch has, under a schedule that is not random, before the first goes on
LONGEST_RUN = 16  # turns of one launch until it is the other's, under a random schedule


class _Running:
    """A launch as the machines of its waves, one after another, a few turns at a time."""

    def __init__(self, launch: PreparedLaunch, tracking: Tracking | None, *, waits: bool) -> None:
        self.tracking, self.waits = tracking, waits
        self.findings = LaunchFindings(launch.checks.waivers) if tracking is None else tracking.findings
        self.waves: Iterator[Machine] = launch.waves(self.findings, monotonic() + launch.checks.seconds, tracking)
        self.machine, self.left = next(self.waves), -(-launch.shape.ctas // launch.wave) - 1
        self.machine.launches.is_open = not waits

    def advance(self, turns: int | None = None) -> bool:
        """Run up to `turns` turns, or as far as the launch can; return whether it can go on after that."""
        if self.machine.advance(turns):
            return True
        if self.machine.launches.waiting or self.is_complete:
            return False
        self.machine.finish()
        if not self.left:
            self._conclude()
            return False
        self.machine, self.left = next(self.waves), self.left - 1
        self.machine.launches.is_open = not self.waits
        return True

    def _conclude(self) -> None:
        self.left = -1
        if self.tracking is not None:
            self.tracking.conclude()

    @property
    def is_complete(self) -> bool:
        """Return whether all waves have run."""
        return self.left < 0

    @property
    def lets_others_begin(self) -> bool:
        """Return whether the next launch may start."""
        return self.is_complete or (self.left == 0 and self.machine.launches.lets_others_begin)

    def open(self) -> None:
        """Let the launch pass griddepcontrol.wait, as the launch before is complete."""
        self.waits = False
        self.machine.launches.open()


def run_overlapped(first: PreparedLaunch, second: PreparedLaunch, before: Snapshot) -> LaunchFindings:
    """Run both launches from the memory `before` and return the findings of the second; a fault of either is raised.
    Under "eager" and "lazy" the second runs as far as it can as soon as it may start. Under "random" the two
    alternate for random numbers of turns. Launches that read uninitialized memory run again with tracking."""
    try:
        return _run(first, second, None, None)
    except UnwrittenReadError:
        first.memory.restore(before)
    trackings = [
        Tracking(launch.checks.initialised, LaunchFindings(launch.checks.waivers)) for launch in (first, second)
    ]
    return _run(first, second, *trackings)


def _run(
    first: PreparedLaunch, second: PreparedLaunch, followed: Tracking | None, tracking: Tracking | None
) -> LaunchFindings:
    """Run both launches once, with the trackings given, and return the findings of the second."""
    one = _Running(first, followed, waits=False)
    while not one.lets_others_begin:
        one.advance(1)
    two = _Running(second, tracking, waits=True)
    choice = np.random.Generator(np.random.Philox(second.seed)) if second.policy == "random" else None

    def turns() -> int:
        return LONGEST_RUN if choice is None else int(choice.integers(1, LONGEST_RUN + 1))

    if choice is None:
        two.advance(HEAD_START)
    while not one.is_complete:
        one.advance(turns())
        if not one.is_complete:
            two.advance(turns())
    two.open()
    while two.advance():
        pass
    return two.findings
