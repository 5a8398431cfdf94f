"""What a launch checks."""

from dataclasses import dataclass

from refsim.errors import RefsimError

LEVELS = ("error", "record", "off")


@dataclass(frozen=True)
class Checks:
    """What a launch checks beyond bounds and alignment, which are always checked.

    "error" stops at the first finding, "record" notes it and goes on, "off" does not look. initialised: bits that
    nobody wrote and that reach an output, an address or a decision (what is read for nothing is a note). copies:
    shared bytes read while a cp.async still writes them. races: accesses of two warps to shared bytes, one of them a
    write, that no barrier and no atomic or volatile access to shared memory orders (a flag in global memory orders
    nothing here). divergence: an aligned barrier of the CTA that the threads of a warp reach at different
    instructions; without the check it gathers them, as chips do since sm_70. banks: whether bank conflicts are
    counted. seconds: wall-clock limit of a launch.
    """

    initialised: str = "error"
    copies: str = "error"
    races: str = "error"
    divergence: str = "error"
    banks: bool = False
    seconds: float = 600.0

    def __post_init__(self) -> None:
        for name in ("initialised", "copies", "races", "divergence"):
            level = getattr(self, name)
            if level not in LEVELS:
                raise RefsimError("unknown-check", f"{name}={level!r}", help="error, record or off")

    def level(self, code: str) -> str:
        """What to do about a finding: "uninitialised" is governed by `initialised`."""
        convergence = "off" if self.races == "off" else "warning"
        return {
            "uninitialised": self.initialised,
            "read-before-wait": self.copies,
            "race": self.races,
            "ordered-by-convergence": convergence,
            "divergent-sync": self.divergence,
        }.get(code, "error")
