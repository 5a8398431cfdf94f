"""The explanation of two results that differ: causes that reproduce every bit, partial causes, and refuted ones."""

from collections import Counter
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from refsim.causes.search import Named
from refsim.computations.ways import Cause
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
    """The outcome of a search for causes."""

    EQUAL = "equal"
    EXPLAINED = "explained"
    UNEXPLAINED = "unexplained"
    TOO_LITTLE = "too little to name a cause"


@dataclass(frozen=True)
class SumsSoFar:
    """Both sums of one element after the columns of K before `end`; in attention, after the keys before `end`.

    `code_a` and `code_b` are float32 patterns, or for integers 32-bit words in two's complement.
    """

    end: int
    code_a: int
    code_b: int
    held: ElementType = F32
    over: str = "columns of K"


@dataclass(frozen=True, repr=False)
class DiffExplanation(Card):
    """What makes output A differ from B, the second output or the reference.

    `named` are causes, or pairs, that each turn one output into the other in every bit. `apart` says on which test
    cases several of them differ; `made` is the output that they reproduce. `parts` correct some differing elements and
    break none. `excluded` were refuted; `unseen` change nothing here, so nothing is known of them; `untried` counts
    those left at the end. `judged` of `size` elements were computed. `a_is` and `b_is` describe how each is
    computed, "" where unknown. `beside`: what an output that was not given would be, such as the scales for a
    quantizer's codes; for two outputs that no cause explains together, what explains each alone. `seen`: where the
    outputs differ and what each holds there, for differences without a cause.
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
    seen: tuple[str, ...] = ()

    def _repr_summary(self) -> str:
        said = f"{self.outcome}, {self.differing} of {self.size} differ"
        return f"{said}, {len(self.named)} named" if self.named else said

    def _facts(self) -> Facts:
        words = (line.split("  ", 1) for line in self.lines())
        return [(first, "".join(rest)) for first, *rest in words]

    def lines(self) -> list[str]:
        """Return the answer as lines of text, the verdict first."""
        found = [self._verdict()]
        found += [f"{name} is {words}" for name, words in (("A", self.a_is), ("B", self.b_is)) if words]
        by_family: dict[tuple[str, ...], list[Named]] = {}
        for each in self.named:
            by_family.setdefault(tuple(str(cause.family) for cause in each.causes), []).append(each)
        for alike in by_family.values():
            more = f"; {len(alike) - 1} more of the kind" if len(alike) > 1 else ""
            of = "" if self.made == "A" else f" of {self.made}"
            exact = "" if alike[0].is_near else f"; reproduces every bit{of}"
            found.append(f"cause  {alike[0]}{exact}{more}")
        found += [f"seen  {text}" for text in self.seen]
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
            found.append(f"limit reached: {self.untried} not tried")
        return found

    def _verdict(self) -> str:
        """Return the outcome with the counts of differing and judged elements, in one line."""
        judged = "" if self.judged == self.size else f"; {self.size - self.judged} were not computed"
        if self.outcome is DiffOutcome.EQUAL:
            return f"equal: {counted(self.judged, 'element')}, every bit{judged}"
        share = 100 * self.differing / max(1, self.judged)
        of = f"{counted(self.judged, 'element')} {'differs' if self.judged == 1 else 'differ'}"
        return f"{self.outcome}: {self.differing} of {of} ({share:.3g} %){judged}"

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object with these keys.

        `outcome`: the DiffOutcome. `differing`, `judged`, `size`: counts of elements.
        `a_is`, `b_is`: how each output is computed. `explained_output`: the output that causes reproduce, "A" or "B".
        `named`: causes, or pairs, that reproduce every bit. `partial_causes`: causes that correct some elements.
        `excluded`: refuted causes. `undetectable`: causes that change nothing on this data.
        `pairs_tried`, `untried`: counts of pairs that were tried, and of causes or pairs left when the time ended.
        `distinguished_by`: test cases on which `named` causes differ. `implied`: what causes say of another output.
        `seen`: where the outputs differ and what each holds there.
        `FORMER_KEYS` repeats some keys under their names of the last release; docs/verdicts.md describes them all.
        """
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
            "seen": list(self.seen),
        }
        return found | {former: found[key] for former, key in FORMER_KEYS.items()}

    def __str__(self) -> str:
        return "\n".join(self.lines())


def _counted(causes: tuple[Cause, ...]) -> str:
    """Return the families of causes as text, with a count where a family has several."""
    counts = Counter(str(cause.family) for cause in causes)
    return ", ".join(f"{name} ({count})" if count > 1 else name for name, count in counts.items())


def _of_cause(cause: Cause) -> dict[str, str]:
    return {"family": str(cause.family), "says": cause.says, "source": str(cause.source)}


def _of_named(named: Named) -> dict[str, Any]:
    return {"causes": [_of_cause(each) for each in named.causes], "repaired": named.repaired}
