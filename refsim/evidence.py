"""The evidence for an entry of the model: what was read or run in addition to the document that it cites."""

from dataclasses import dataclass
from enum import IntEnum


class Level(IntEnum):
    """The strength of the evidence, weakest first: nothing published, its source alone, other sources, hardware."""

    UNVERIFIED = 0
    FORMULA = 1
    INDEPENDENT = 2
    SILICON = 3

    @property
    def word(self) -> str:
        """Return the name as tables show it: Level.SILICON.word is "silicon"."""
        return self.name.lower()


@dataclass(frozen=True)
class Run:
    """A run on a chip; its recording, `vectors`, replays in the conformance suite."""

    device: str
    date: str
    vectors: str


@dataclass(frozen=True)
class Evidence:
    """The evidence for an entry: its level, what was run or read, and the `packages` and `runs` that tests name."""

    level: Level
    what: str
    packages: tuple[str, ...] = ()
    runs: tuple[Run, ...] = ()

    def __str__(self) -> str:
        return f"{self.level.word}: {self.what}"
