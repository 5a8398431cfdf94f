"""A mistake that explains a kernel whose bits differ, and the evidence for it."""

from dataclasses import dataclass

from refsim.errors import counted

FRAGMENT = "registers of a fragment exchanged"
SHOWN = 3  # places listed one by one


class OutOfTimeError(Exception):
    """The time ended before every mistake had been tried; `tried` is the number of edits tried."""

    def __init__(self, tried: int) -> None:
        super().__init__(f"{counted(tried, 'edit')} tried")
        self.tried = tried

    def note(self, seconds: float) -> str:
        """Return the note for a verdict."""
        return (
            f"no likely cause yet: the search ended after {seconds:g} s of processor time and {counted(self.tried, 'edit')}, "
            "before all were tried (refsim verify --suspects SECONDS, or a larger profile)"
        )


@dataclass(frozen=True)
class Instead:
    """The wrong part of a line and its replacement; both are empty if they are too long."""

    wrong: str = ""
    right: str = ""


UNSAID = Instead()


@dataclass(frozen=True)
class Suspicion:
    """A mistake of the kind `suspect`, at `places` of the CUDA source or in outputs; it explains all `problems` tried.

    `is_mended`: the kernel was run with the mistake fixed, and agreed. `by_size`: the size alone decides which test
    cases fail. Otherwise the wrong outputs follow from the right ones. `instead` holds both values of an edit.
    """

    suspect: str
    says: str
    places: tuple[str, ...]
    problems: int
    is_mended: bool = False
    by_size: bool = False
    instead: Instead = UNSAID

    def __str__(self) -> str:
        more = f" and {len(self.places) - SHOWN} more" if len(self.places) > SHOWN else ""
        where = ", ".join(self.places[:SHOWN]) + more
        proof = f"with {self.instead.right or 'this fixed'}" if self.is_mended else "it gives exactly these bits in"
        proof = (
            f"{'true of' if self.by_size else proof} all {self.problems} test cases{' pass' if self.is_mended else ''}"
        )
        if not self.instead.wrong:
            return f"{self.suspect}: {self.says}, {where} ({proof})"
        says = f"{self.says}, " if self.says else ""
        return f"{self.suspect}: {says}{self.instead.wrong} instead of {self.instead.right} at {where} ({proof})"
