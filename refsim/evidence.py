"""How sure a row of the model is: what was read or run beside the document that it cites."""

from dataclasses import dataclass
from enum import IntEnum


class Level(IntEnum):
    """What a row rests on, weakest first: nothing published, its source alone, others who agree, or silicon."""

    UNVERIFIED = 0
    FORMULA = 1
    INDEPENDENT = 2
    SILICON = 3

    @property
    def word(self) -> str:
        """As tables show it: Level.SILICON.word is "silicon"."""
        return self.name.lower()


@dataclass(frozen=True)
class Run:
    """A run on a chip whose recording, `vectors`, replays in the conformance suite."""

    device: str
    date: str
    vectors: str


@dataclass(frozen=True)
class Evidence:
    """How sure a row is: its level, what was run or read, and of that `packages` and `runs` where tests name them."""

    level: Level
    what: str
    packages: tuple[str, ...] = ()
    runs: tuple[Run, ...] = ()

    def __str__(self) -> str:
        return f"{self.level.word}: {self.what}"
