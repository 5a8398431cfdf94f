"""What is said of two results that differ: the causes that reproduce every bit, those that explain a part, those that do not."""

from collections import Counter
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from refsim.causes.rows import Cause
from refsim.causes.search import Named
from refsim.errors import counted
from refsim.formats import F32, ElementType
from refsim.render.cards import Card, Facts

FORMER_KEYS = {
    "made": "explained_output",
    "parts": "partial_causes",
    "unseen": "undetectable",
    "apart": "distinguished_by",
    "beside": "implied",
}


class DiffOutcome(StrEnum):
    """What came of it."""

    EQUAL = "equal"
    EXPLAINED = "explained"
    UNEXPLAINED = "unexplained"
    TOO_LITTLE = "too little to name a cause"


@dataclass(frozen=True)
class SumsSoFar:
    """Both sums of one element after the part of K before `end`, of attention what its keys give.

    `code_a` and `code_b` are patterns of float32, of integers words of 32 bits in two's complement.
    """

    end: int
    code_a: int
    code_b: int
    held: ElementType = F32
    over: str = "columns of K"


@dataclass(frozen=True, repr=False)
class DiffExplanation(Card):
    """What makes output A differ from B, the second one or what is usual.

    `named` are causes, or two together, each of which turns the one into the other in every bit: several are alike on this data,
    and `apart` says on which problem they are not; `made` is the output that they make of the other one. `parts` put some
    differing elements right and break none. `excluded` were refuted, `unseen` change nothing here, so that nothing is known of
    them; `untried` were left when the time was over. `judged` of `size` elements were computed. `a_is` and `b_is` say how each
    is computed, "" where nobody knows. `beside`: what an output would be that belongs to A and was not given, as the scales of
    a quantiser's codes; of two outputs that no cause explains together, what explains each alone.
    """

    outcome: DiffOutcome
    differing: int
    judged: int
    size: int
    named: tuple[Named, ...] = ()
    parts: tuple[Named, ...] = ()
    excluded: tuple[Cause, ...] = ()
    unseen: tuple[Cause, ...] = ()
    pairs: int = 0
    untried: int = 0
    a_is: str = ""
    b_is: str = ""
    apart: tuple[str, ...] = ()
    element: tuple[int, ...] | None = None
    stages: tuple[SumsSoFar, ...] = ()
    made: str = "A"
    beside: tuple[str, ...] = ()

    def _line(self) -> str:
        said = f"{self.outcome}, {self.differing} of {self.size} differ"
        return f"{said}, {len(self.named)} named" if self.named else said

    def _facts(self) -> Facts:
        words = (line.split("  ", 1) for line in self.lines())
        return [(first, "".join(rest)) for first, *rest in words]

    def lines(self) -> list[str]:
        """The answer as text, the verdict first."""
        found = [self._verdict()]
        found += [f"{name} is {words}" for name, words in (("A", self.a_is), ("B", self.b_is)) if words]
        by_family: dict[tuple[str, ...], list[Named]] = {}
        for each in self.named:
            by_family.setdefault(tuple(str(cause.family) for cause in each.causes), []).append(each)
        for alike in by_family.values():
            more = f"; {len(alike) - 1} more of the kind" if len(alike) > 1 else ""
            of = "" if self.made == "A" else f" of {self.made}"
            found.append(f"cause  {alike[0]}; reproduces every bit{of}{more}")
        found += [f"distinguished by  {text}" for text in self.apart]
        found += [f"implied  {text}" for text in self.beside]
        for each in self.parts:
            share = 100 * each.repaired / max(1, self.differing)
            found.append(
                f"partial  {each}; {each.repaired} of {counted(self.differing, 'difference')} ({share:.3g} %), breaks none"
            )
        if self.excluded:
            found.append(f"excluded  {_counted(self.excluded)}" + (f"; {self.pairs} pairs" if self.pairs else ""))
        if self.unseen:
            found.append(f"undetectable on this data  {_counted(self.unseen)}")
        if self.untried:
            found.append(f"time limit reached: {self.untried} not tried")
        return found

    def _verdict(self) -> str:
        judged = "" if self.judged == self.size else f"; {self.size - self.judged} were not computed in the time"
        if self.outcome is DiffOutcome.EQUAL:
            return f"equal: {counted(self.judged, 'element')}, every bit{judged}"
        share = 100 * self.differing / max(1, self.judged)
        of = f"{counted(self.judged, 'element')} {'differs' if self.judged == 1 else 'differ'}"
        return f"{self.outcome}: {self.differing} of {of} ({share:.3g} %){judged}"

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object; docs/verdicts.md describes its keys, and `FORMER_KEYS` stay for one release."""
        found: dict[str, Any] = {
            "outcome": str(self.outcome),
            "differing": self.differing,
            "judged": self.judged,
            "size": self.size,
            "a_is": self.a_is,
            "b_is": self.b_is,
            "explained_output": self.made,
            "named": [_of_named(each) for each in self.named],
            "partial_causes": [_of_named(each) for each in self.parts],
            "excluded": [_of_cause(each) for each in self.excluded],
            "undetectable": [_of_cause(each) for each in self.unseen],
            "pairs_tried": self.pairs,
            "untried": self.untried,
            "distinguished_by": list(self.apart),
            "implied": list(self.beside),
        }
        return found | {former: found[key] for former, key in FORMER_KEYS.items()}

    def __str__(self) -> str:
        return "\n".join(self.lines())


def _counted(causes: tuple[Cause, ...]) -> str:
    counts = Counter(str(cause.family) for cause in causes)
    return ", ".join(f"{name} ({count})" if count > 1 else name for name, count in counts.items())


def _of_cause(cause: Cause) -> dict[str, str]:
    return {"family": str(cause.family), "says": cause.says, "source": str(cause.source)}


def _of_named(named: Named) -> dict[str, Any]:
    return {"causes": [_of_cause(each) for each in named.causes], "repaired": named.repaired}
