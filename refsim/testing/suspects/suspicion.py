"""A mistake that explains a kernel whose bits differ, and on what that rests."""

from dataclasses import dataclass

from refsim.errors import counted

SHOWN = 3  # places listed one by one


class OutOfTimeError(Exception):
    """The time was over before every mistake had been tried; `tried` edits had been."""

    def __init__(self, tried: int) -> None:
        super().__init__(f"{counted(tried, 'edit')} tried")
        self.tried = tried

    def note(self, seconds: float) -> str:
        """What a verdict says of it."""
        return (
            f"no likely cause yet: the search ended after {seconds:g} s of processor time and {counted(self.tried, 'edit')}, "
            "before all were tried (refsim verify --suspects SECONDS, or a larger profile)"
        )


@dataclass(frozen=True)
class Instead:
    """What a guilty line says, and what stands in its place where the mistake is fixed; both empty where they are too long."""

    wrong: str = ""
    right: str = ""


UNSAID = Instead()


@dataclass(frozen=True)
class Suspicion:
    """A mistake of the kind `suspect`, at `places` of the CUDA source or in outputs; it explains all `problems` tried.

    `is_mended`: the kernel was run with the mistake fixed, and agreed; `by_size`: a size alone tells which test cases fail; else
    the wrong outputs follow from the right ones. `instead` names both values of an edit.
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
