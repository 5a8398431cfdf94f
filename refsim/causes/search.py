"""The search: which choice of a plan, or which two together, reproduces every bit of an output.

A sample of elements refutes most choices; what it leaves is computed in full. Two choices together are tried where no single one
fits. The time is bounded: what was not tried is counted, and what was not computed is not judged.
"""

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from refsim.causes.in_part import is_mixed
from refsim.causes.judged import tile_rows
from refsim.causes.rows import (
    Cause,
    Codes,
    DoesNotApplyError,
    Explained,
    FlatSample,
    Indices,
    PlanT,
    Sample,
    lines_chosen,
)
from refsim.render.cards import FieldsCard

SAMPLE_ROWS, SAMPLE_COLUMNS, PAIR_ROWS = 8, 16, 2
LEAST_PART = 0.01
PARTS = 3
CHEAP = ("written", "placed")
OF_FUNCTIONS = ("order", "held", "exponent", "function", "quotient", "mean", "root", "squares", "product", "silu_function",
                "silu_quotient", "tile", "lanes", "joined", "summed", "scaled", "logarithm", "wide")  # fmt: skip
ADDING = ("adder", "interval", "sharing", "descends", "running", "promotion", "accumuland", *OF_FUNCTIONS, *CHEAP)
"""Choices that one kernel makes differently from another without being wrong: two of them together are usual."""
OF_RANGES = ("counted", "counted_from")
"""Choices that there are where K is shared alone."""
Report = Callable[[str, int, int], None]


@runtime_checkable
class SampledByRows(Protocol):
    """A subject of which some rows are computed alone, and of which a cause may have made a part."""

    def few_rows(self, wrong: NDArray[np.bool_], most: int) -> FlatSample | None:
        """Rows where much differs and some others, and their places; None where all of it costs little."""

    def is_refuted(self, plan: Any, got: Codes) -> bool:
        """Whether what costs least to compute, of several outputs in one, is other than in `got` already."""

    def part(self, cause: Cause, made: Codes, got: Codes, want: Codes) -> str | None:
        """Where `got` is as `made` by a cause, and as `want` everywhere else."""


@runtime_checkable
class WithReferences(Protocol):
    """A subject that others compute too, each step in a way of their own."""

    def references(self) -> Sequence[Cause]:
        """All steps of one of them together."""


@dataclass(frozen=True, repr=False)
class Named(FieldsCard):
    """Causes that together put `repaired` of the differing elements right and break none; `is_whole`: every bit is reproduced."""

    causes: tuple[Cause, ...]
    repaired: int
    is_whole: bool

    def __str__(self) -> str:
        return " and ".join(map(str, self.causes))


@dataclass
class Found:
    """What became of every cause that was tried on one output."""

    differing: int = 0
    judged: int = 0
    whole: list[Named] = field(default_factory=list)
    parts: list[Named] = field(default_factory=list)
    excluded: list[Cause] = field(default_factory=list)
    unseen: list[Cause] = field(default_factory=list)
    absent: list[Cause] = field(default_factory=list)
    pairs: int = 0
    untried: int = 0

    @property
    def is_equal(self) -> bool:
        return not self.differing


@dataclass
class CauseSearch(Generic[PlanT]):
    """One output `got` of a subject, begun from the plan `start`; `want` is what that gives, computed here where it is None.

    `alone`: what is said of `got` and `want` as they are, where no single cause fits and before two together are tried.
    `judged`: the rows that are computed and compared, None: all; fewer where the time ends before `want` is there.
    """

    subject: Explained[PlanT]
    start: PlanT
    got: Codes
    deadline: float
    want: Codes | None = None
    report: Report | None = None
    alone: Callable[[Codes, Codes], list[Named]] | None = None
    found: Found = field(default_factory=Found)
    judged: Indices | None = None
    mixed: list[Cause] = field(default_factory=list)

    def run(self) -> Found:
        """Singles, then those that made a part alone, then pairs."""
        is_given = self.want is not None
        if self.want is None:
            self.want, done = self._computed(self.start, phase="elements")
            self.judged = self._lines[:done] if done < len(self.got) else None
        wrong = self.want[self._rows] != self.got[self._rows]
        self.found.differing, self.found.judged = int(wrong.sum()), wrong.size
        if not self.found.differing:
            return self.found
        sample = self._sample(wrong)
        causes = self.subject.causes()
        had = {cause.aspect: cause for cause in causes if cause.is_made(self.start)}
        singles = [cause.seen_from(had.get(cause.aspect)) for cause in causes if not cause.is_made(self.start)]
        singles.sort(key=lambda cause: cause.rank)
        # To move a whole large output takes longer than to compute a sample of it.
        moving = [cause for cause in singles if self.judged is not None and cause.aspect == "placed"]
        partial = self._singles([cause for cause in singles if cause not in moving], sample)
        if not self.found.whole and self.alone is not None and (is_given or self.judged is None):
            self.found.whole += self.alone(self.got, self.want)
        if not self.found.whole:
            self._in_part()
        if not self.found.whole and isinstance(self.subject, WithReferences):
            partial += self._singles(
                [each for each in self.subject.references() if not each.is_made(self.start)], sample
            )
        if moving and not self.found.whole:
            partial += self._singles(moving, sample)
        if not self.found.whole:
            self._parts(partial)
            self._pairs(sample)
        return self.found

    # ---- single causes ---------------------------------------------------------------------------------------------

    def _singles(self, singles: Sequence[Cause], sample: Sample | FlatSample | None) -> list[tuple[float, Cause]]:
        """Every cause alone; returns those that put a part of the sample right, and how much."""
        partial: list[tuple[float, Cause]] = []
        want = self._at(self.want, sample)
        for number, cause in enumerate(singles):
            if self._is_late():
                self.found.untried += len(singles) - number
                break
            self._tell("causes", number, len(singles))
            try:
                plan, got = self._undone(cause.of(self.start))
                made = self.subject.codes(plan, sample)
            except DoesNotApplyError:
                self.found.absent.append(cause)
                continue
            right = self._at(got, sample)
            if got is self.got and is_mixed(made, right, want):
                self.mixed.append(cause)
            if (made == right).all() and self._holds(plan, got):
                self.found.whole.append(Named((cause,), self.found.differing, is_whole=True))
            elif got is self.got and (made == want).all() and self._is_unseen(plan, sample):
                self.found.unseen.append(cause)
            else:
                self.found.excluded.append(cause)
                differs = want != self._at(self.got, sample)
                if got is self.got and (made[~differs] == want[~differs]).all():
                    partial.append((float((made == right)[differs].mean()), cause))
        return partial

    def _is_unseen(self, plan: PlanT, sample: Sample | FlatSample | None) -> bool:
        """Whether a plan changes nothing anywhere, where all of it costs not much more than the sample."""
        return not isinstance(sample, FlatSample) or bool((self.subject.codes(plan) == self.want).all())

    def _in_part(self) -> None:
        """Causes by which some rows or columns were made, as a kernel does by one of several paths."""
        if self.want is None or not isinstance(self.subject, SampledByRows):
            return
        for cause in self.mixed:
            if self._is_late():
                return
            where = self.subject.part(cause, self.subject.codes(cause.of(self.start)), self.got, self.want)
            if where is not None:
                named = replace(cause, says=f"{cause.says}; {where}", aspect="")
                self.found.whole.append(Named((named,), self.found.differing, is_whole=True))

    def _parts(self, partial: Sequence[tuple[float, Cause]]) -> None:
        """The causes that explain most, measured over everything that is judged."""
        assert self.want is not None
        for share, cause in sorted(partial, key=lambda each: -each[0])[:PARTS]:
            if share < LEAST_PART or self._is_late():
                continue
            made, done = self._computed(cause.of(self.start))
            made, got, want = made[self._rows], self.got[self._rows], self.want[self._rows]
            differs = want != got
            if done >= len(got) and (made[~differs] == got[~differs]).all():
                repaired = int((made == got)[differs].sum())
                self.found.parts.append(Named((cause,), repaired, is_whole=False))
        self.found.parts.sort(key=lambda each: -each.repaired)

    # ---- two together ----------------------------------------------------------------------------------------------

    def _pairs(self, sample: Sample | FlatSample | None) -> None:
        """Two causes of different choices, the cheap and usual ones first; the first rank that fits ends the search."""
        pairs = list(self._ordered_pairs())
        by_rows = self.subject if isinstance(self.subject, SampledByRows) else None
        if by_rows is not None and isinstance(sample, FlatSample):
            sample = by_rows.few_rows(np.asarray(self.want != self.got), PAIR_ROWS)
        fitting_rank: int | None = None
        for number, (rank, first, second) in enumerate(pairs):
            if self._is_late():
                self.found.untried += len(pairs) - number
                return
            if fitting_rank is not None and rank > fitting_rank:
                return
            self._tell("pairs", number, len(pairs))
            self.found.pairs += 1
            try:
                plan, got = self._undone(second.of(first.of(self.start)))
                if by_rows is not None and by_rows.is_refuted(plan, got):
                    continue
                made = self.subject.codes(plan, sample)
            except DoesNotApplyError:
                continue
            if (made == self._at(got, sample)).all() and self._holds(plan, got):
                fitting_rank = rank
                self.found.whole.append(Named((first, second), self.found.differing, is_whole=True))

    def _ordered_pairs(self) -> Iterator[tuple[int, Cause, Cause]]:
        # What does not apply alone may do so beside another choice, as scales of blocks do with their interval.
        # All steps of a reference are made before one of them is made otherwise.
        candidates = sorted([*self.found.excluded, *self.found.absent], key=lambda each: not each.beside)
        if self.judged is not None:
            candidates = [each for each in candidates if each.aspect != "placed"]
        ranked = [
            (_rank(first, second), first, second)
            for first, second in itertools.combinations(candidates, 2)
            if first.aspect != second.aspect
        ]
        # Ranges that change no bit where all is right do so where one of them is left out.
        shared = [each for each in self.found.unseen if each.aspect == "sharing"]
        of_ranges = [each for each in self.found.absent if each.aspect in OF_RANGES]
        ranked += [(_rank(first, second), first, second) for first in shared for second in of_ranges]
        yield from sorted(ranked, key=lambda each: each[0])

    # ---- elements ----------------------------------------------------------------------------------------------------

    def _undone(self, plan: PlanT) -> tuple[PlanT, Codes]:
        return self.subject.undone(plan, self.got)

    def _sample(self, wrong: NDArray[np.bool_]) -> Sample | FlatSample | None:
        """Rows and columns where much differs, and some where nothing does."""
        if isinstance(self.subject, SampledByRows):
            return self.subject.few_rows(wrong, SAMPLE_ROWS)
        if not self.subject.is_sampled:
            return None
        rows = lines_chosen(wrong.sum(axis=1), SAMPLE_ROWS)
        return self._lines[rows], lines_chosen(wrong[rows].sum(axis=0), SAMPLE_COLUMNS)

    @property
    def _rows(self) -> Indices | slice:
        return slice(None) if self.judged is None else self.judged

    @property
    def _lines(self) -> Indices:
        return np.arange(len(self.got)) if self.judged is None else self.judged

    def _at(self, codes: Codes | None, sample: Sample | FlatSample | None) -> Codes:
        assert codes is not None
        if isinstance(sample, FlatSample):
            return codes.reshape(-1)[sample.at]
        return codes if sample is None else codes[sample[0]][:, sample[1]]

    def holds(self, plan: PlanT) -> bool:
        """Whether a plan gives the output in every bit."""
        return self._holds(plan, self.got)

    def _holds(self, plan: PlanT, got: Codes) -> bool:
        """Whether a plan reproduces every bit that is judged."""
        made, done = self._computed(plan, got)
        return done == len(self._lines) and bool((made[self._rows] == got[self._rows]).all())

    def _computed(self, plan: PlanT, got: Codes | None = None, phase: str = "") -> tuple[Codes, int]:
        """What a plan gives, and how many of the judged rows the time allowed; with `got` to the first difference."""
        if not self.subject.is_sampled:
            made = self.subject.codes(plan)
            return made, len(made)
        plain, _ = self.subject.undone(plan, self.got)
        if plain != plan:
            return self.subject.codes(plan), len(self._lines)
        rows, columns = self.subject.shape
        lines, step, everything = self._lines, tile_rows(self.subject.shape), np.arange(columns)
        made = np.zeros((rows, columns), self.got.dtype)
        for first in range(0, len(lines), step):
            if first and self._is_late():
                return made, first
            if phase:
                self._tell(phase, first * columns, rows * columns)
            part = lines[first : first + step]
            made[part] = self.subject.codes(plan, (part, everything))
            if got is not None and (made[part] != got[part]).any():
                break
        return made, len(lines)

    def _is_late(self) -> bool:
        return time.process_time() > self.deadline

    def _tell(self, phase: str, done: int, planned: int) -> None:
        if self.report is not None:
            self.report(phase, done, planned)


def _rank(first: Cause, second: Cause) -> int:
    one, other = first.aspect, second.aspect
    if (one == "sharing" and other in OF_RANGES) or (other == "sharing" and one in OF_RANGES):
        return first.rank + second.rank
    wrong = (one not in ADDING) + (other not in ADDING)
    return 2 * (first.rank + second.rank) + (0, 4, 10)[wrong] - (one in CHEAP or other in CHEAP)
