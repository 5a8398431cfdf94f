"""A mistake that explains a kernel whose bits differ, and on what that rests."""

from dataclasses import dataclass

SHOWN = 3  # places listed one by one


class OutOfTimeError(Exception):
    """The time was over before every mistake had been tried; `tried` edits had been."""

    def __init__(self, tried: int) -> None:
        super().__init__(f"{tried} edits tried")
        self.tried = tried

    def note(self, seconds: float) -> str:
        """What a verdict says of it."""
        return (
            f"no suspect yet: the search ended after {seconds:g} s of processor time and {self.tried} edits, "
            "before all were tried (refsim verify --suspects SECONDS, or a larger profile)"
        )


@dataclass(frozen=True)
class Suspicion:
    """A mistake of the kind `suspect`, at `places` of the CUDA source or in outputs; it explains all `problems` tried.

    `is_mended`: the kernel was run with the mistake undone, and agreed; `by_size`: a size alone tells which problems fail; else
    the wrong outputs follow from the right ones.
    """

    suspect: str
    says: str
    places: tuple[str, ...]
    problems: int
    is_mended: bool = False
    by_size: bool = False

    def __str__(self) -> str:
        more = f" and {len(self.places) - SHOWN} more" if len(self.places) > SHOWN else ""
        where = ", ".join(self.places[:SHOWN]) + more
        proof = "undone, it agrees" if self.is_mended else "that gives these very bits"
        proof = "so it is" if self.by_size else proof
        return f"{self.suspect}: {self.says}, {where}; {proof} on all {self.problems} problems tried"
