"""One run of the program."""

import shlex
from dataclasses import dataclass


@dataclass
class Session:
    """The arguments of this run, and whether tracebacks are wanted."""

    arguments: tuple[str, ...] = ()
    debug: bool = False

    @property
    def command_line(self) -> str:
        """What a shell takes to run this again."""
        return shlex.join(["refsim", *self.arguments])
