"""The search: which choice of a plan, or which pair of choices, reproduces every bit of an output.

A sample of elements refutes most choices; the others are computed in full. Pairs are tried where no single choice fits.
The time is bounded: choices that were not tried are counted, and elements that were not computed are not judged.
"""

import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from refsim.causes.effort import Limit, tile_rows
from refsim.computations.engine import Computation
from refsim.computations.in_part import is_mixed
from refsim.computations.ways import (
    Cause,
    Choices,
    Codes,
    DoesNotApplyError,
    FlatSample,
    Indices,
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
"""Choices in which right kernels differ from each other, so that pairs of them are usual."""
OF_RANGES = ("counted", "counted_from")
"""Choices that exist only where K is shared."""
Report = Callable[[str, int, int], None]


@runtime_checkable
class SampledByRows(Protocol):
    """A subject that can compute some rows alone, and of which a cause may have made a part."""

    def few_rows(self, wrong: NDArray[np.bool_], most: int) -> FlatSample | None:
        """Return rows with many differences and some others, with their places; None for cheap subjects."""

    def is_refuted(self, plan: Any, got: Codes) -> bool:
        """Return whether the cheapest of several outputs in one already differs from `got`."""

    def part(self, cause: Cause, made: Codes, got: Codes, want: Codes) -> str | None:
        """Return where `got` equals `made` while it equals `want` elsewhere, as text."""


@dataclass(frozen=True, repr=False)
class Named(FieldsCard):
    """Causes that together correct `repaired` differing elements and break none.

    `is_whole`: they reproduce all bits; `is_near`: they hold for every element within a rounding.
    """

    causes: tuple[Cause, ...]
    repaired: int
    is_whole: bool
    is_near: bool = False

    def plan_from(self, start: Any) -> Any:
        """Return the plan `start` with the choices of all causes; uninitialized parts are no choices."""
        return functools.reduce(lambda plan, cause: cause.of(plan) if cause.aspect else plan, self.causes, start)

    def __str__(self) -> str:
        return " and ".join(map(str, self.causes))


SEEDS, MOST_APART = (1, 2, 3), 3


def told_apart(subject: Computation, start: Any, named: tuple[Named, ...]) -> tuple[str, ...]:
    """Return a sentence for each pair of the first few fitting causes: a drawn test case on which they differ.

    The sentence says so where no drawn test case distinguishes the two. `start` is the plan that the causes change.
    """
    if len(named) < 2:
        return ()
    found = []
    kinds = {tuple(cause.family for cause in each.causes): each for each in reversed(named)}
    chosen = list(kinds.values())[::-1] if len(kinds) > 1 else named
    for one, other in itertools.islice(itertools.combinations(chosen, 2), MOST_APART):
        found.append(f"{one} | {other}: {_difference(subject, start, one, other)}")
    return tuple(found)


def _difference(subject: Computation, start: Any, one: Named, other: Named) -> str:
    """Return how many elements differ between two causes on the first drawn test case where any does."""
    for wide in (False, True):
        for seed in SEEDS:
            drawn = subject.another(seed, wide=wide)
            try:
                first, second = (drawn.codes(each.plan_from(start)) for each in (one, other))
            except DoesNotApplyError:
                continue
            if count := int(np.count_nonzero(first != second)):
                size = " x ".join(map(str, drawn.shape))
                written = f", written in {drawn.format}" if drawn.format is not subject.format else ""
                return f"{count} of {first.size} elements differ on drawn numbers, {size}, seed {seed}{written}"
    return "no random test case distinguishes them"


@dataclass
class Found:
    """The result for every cause that was tried on one output."""

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

    def tried(self) -> dict[str, Any]:
        """Return the fields of an explanation that say what became of the causes that are not named."""
        lists = {name: tuple(getattr(self, name)) for name in ("parts", "excluded", "unseen")}
        return {**lists, "pairs": self.pairs, "untried": self.untried}


@dataclass
class CauseSearch:
    """The search for one output `got` of a subject from the plan `start`; `want` is that plan's output, or None.

    `alone` explains `got` and `want` without plans; it runs after single causes and before pairs. What it says within a
    rounding is kept for the end. `judged`: the rows
    that are computed and compared, None: all; fewer where the time ends while `want` is computed.
    """

    subject: Computation
    start: Choices
    got: Codes
    limit: Limit
    want: Codes | None = None
    report: Report | None = None
    alone: Callable[[Codes, Codes], list[Named]] | None = None
    found: Found = field(default_factory=Found)
    judged: Indices | None = None
    mixed: list[Cause] = field(default_factory=list)

    def run(self) -> Found:
        """Try single causes, then causes that acted in part, then pairs; return the results."""
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
        others = () if self.start is self.subject.usual else self.subject.far_causes
        had = {cause.aspect: cause for cause in (*causes, *others) if cause.is_made(self.start)}
        singles = self._ordered(causes, had)
        near: list[Named] = []
        # Moving a whole large output takes longer than computing a sample of it.
        moving = [cause for cause in singles if self.judged is not None and cause.aspect == "placed"]
        partial = self._singles([cause for cause in singles if cause not in moving], sample)
        if not self.found.whole:
            partial += self._singles(self._ordered(self.subject.far_causes, had), sample)
        if not self.found.whole and self.alone is not None and (is_given or self.judged is None):
            said = self.alone(self.got, self.want)
            self.found.whole += [each for each in said if not each.is_near]
            near += [each for each in said if each.is_near]
        if not self.found.whole:
            self._in_part()
        if not self.found.whole:
            references = [each for each in self.subject.references() if not each.is_made(self.start)]
            partial += self._singles(references, sample)
        if moving and not self.found.whole:
            partial += self._singles(moving, sample)
        if not self.found.whole:
            partial.sort(key=lambda each: -each[0])
            self._parts(partial)
            self._pairs(sample, [cause for share, cause in partial[:PARTS] if share >= LEAST_PART])
            self.found.whole += [] if self.found.whole else near
        return self.found

    # ---- single causes ---------------------------------------------------------------------------------------------

    def _ordered(self, causes: Sequence[Cause], had: Mapping[str, Cause]) -> list[Cause]:
        """Return the causes that are not made, seen from those that are, in the order of rank."""
        singles = [cause.seen_from(had.get(cause.aspect)) for cause in causes if not cause.is_made(self.start)]
        return sorted(singles, key=lambda cause: cause.rank)

    def _singles(self, singles: Sequence[Cause], sample: Sample | FlatSample | None) -> list[tuple[float, Cause]]:
        """Try every cause alone; return the causes that correct a part of the sample, with the share."""
        partial: list[tuple[float, Cause]] = []
        want = self._at(self.want, sample)
        for number, cause in enumerate(singles):
            if self.limit.is_reached():
                self.found.untried += len(singles) - number
                break
            self._tell("causes", number, len(singles))
            try:
                plan, got = self._undone(cause.of(self.start))
                made = self._codes(plan, sample)
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

    def _is_unseen(self, plan: Choices, sample: Sample | FlatSample | None) -> bool:
        """Return whether a plan changes no element, where the whole output costs little more than the sample."""
        return not isinstance(sample, FlatSample) or bool((self._codes(plan) == self.want).all())

    def _in_part(self) -> None:
        """Add causes that made some rows or columns only, as one of several paths of a kernel does."""
        if self.want is None or not isinstance(self.subject, SampledByRows):
            return
        for cause in self.mixed:
            if self.limit.is_reached():
                return
            where = self.subject.part(cause, self._codes(cause.of(self.start)), self.got, self.want)
            if where is not None:
                named = replace(cause, says=f"{cause.says}; {where}", aspect="")
                self.found.whole.append(Named((named,), self.found.differing, is_whole=True))

    def _parts(self, partial: Sequence[tuple[float, Cause]]) -> None:
        """Add the causes that correct most elements and break none, measured over all judged elements."""
        assert self.want is not None
        for share, cause in partial[:PARTS]:
            if share < LEAST_PART or self.limit.is_reached():
                continue
            made, done = self._computed(cause.of(self.start))
            made, got, want = made[self._rows], self.got[self._rows], self.want[self._rows]
            differs = want != got
            if done >= len(got) and (made[~differs] == got[~differs]).all():
                repaired = int((made == got)[differs].sum())
                self.found.parts.append(Named((cause,), repaired, is_whole=False))
        self.found.parts.sort(key=lambda each: -each.repaired)

    # ---- two together ----------------------------------------------------------------------------------------------

    def _pairs(self, sample: Sample | FlatSample | None, helping: Sequence[Cause]) -> None:
        """Try pairs of causes of different choices in the order of rank; the first rank that fits ends the search.

        Pairs with a cause that alone is `helping`, that corrects some elements and breaks none, come first.
        """
        pairs = list(self._ordered_pairs(helping))
        by_rows = self.subject if isinstance(self.subject, SampledByRows) else None
        if by_rows is not None and isinstance(sample, FlatSample):
            sample = by_rows.few_rows(np.asarray(self.want != self.got), PAIR_ROWS)
        fitting_rank: tuple[bool, int] | None = None
        for number, (rank, first, second) in enumerate(pairs):
            if self.limit.is_reached():
                self.found.untried += len(pairs) - number
                return
            if fitting_rank is not None and rank > fitting_rank:
                return
            self._tell("pairs", number, len(pairs))
            self.found.pairs += 1
            try:
                plan, got = self._undone(second.of(first.of(self.start)))
                if by_rows is not None and by_rows.is_refuted(plan, got):
                    self.limit.count(self.subject.work(0) / 4)
                    continue
                made = self._codes(plan, sample)
            except DoesNotApplyError:
                self.limit.count(self.subject.work(0) / 4)
                continue
            if (made == self._at(got, sample)).all() and self._holds(plan, got):
                fitting_rank = rank
                self.found.whole.append(Named((first, second), self.found.differing, is_whole=True))

    def _ordered_pairs(self, helping: Sequence[Cause]) -> Iterator[tuple[tuple[bool, int], Cause, Cause]]:
        """Yield pairs of causes with their rank, in the order of rank."""
        # A cause that does not apply alone may apply with another choice, as block scales do with their interval.
        # A reference changes all of its steps before another cause changes one of them.
        candidates = sorted([*self.found.excluded, *self.found.absent], key=lambda each: not each.beside)
        if self.judged is not None:
            candidates = [each for each in candidates if each.aspect != "placed"]
        pairs = [each for each in itertools.combinations(candidates, 2) if not _is_one_choice(*each)]
        # Shared ranges that change no bit by themselves change bits where one range is left out.
        shared = [each for each in self.found.unseen if each.aspect == "sharing"]
        of_ranges = [each for each in self.found.absent if each.aspect in OF_RANGES]
        pairs += itertools.product(shared, of_ranges)
        known = {id(each) for each in helping}
        ranked = [((not known & {id(one), id(other)}, _rank(one, other)), one, other) for one, other in pairs]
        yield from sorted(ranked, key=lambda each: each[0])

    # ---- elements ----------------------------------------------------------------------------------------------------

    def _undone(self, plan: Choices) -> tuple[Choices, Codes]:
        return self.subject.undone(plan, self.got)

    def _sample(self, wrong: NDArray[np.bool_]) -> Sample | FlatSample | None:
        """Return rows and columns with many differences, and some without."""
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

    def holds(self, plan: Choices) -> bool:
        """Return whether a plan gives the output in every judged bit."""
        return self._holds(plan, self.got)

    def _holds(self, plan: Choices, got: Codes) -> bool:
        """Return whether a plan reproduces every judged bit of `got`."""
        made, done = self._computed(plan, got)
        return done == len(self._lines) and bool((made[self._rows] == got[self._rows]).all())

    def _computed(self, plan: Choices, got: Codes | None = None, phase: str = "") -> tuple[Codes, int]:
        """Return a plan's output and how many judged rows the time allowed; with `got` up to a difference."""
        if not self.subject.is_sampled:
            made = self._codes(plan)
            return made, len(made)
        plain, _ = self.subject.undone(plan, self.got)
        if plain != plan:
            return self._codes(plan), len(self._lines)
        rows, columns = self.subject.shape
        lines, step, everything = self._lines, tile_rows(self.subject.shape), np.arange(columns)
        made = np.zeros((rows, columns), self.got.dtype)
        for first in range(0, len(lines), step):
            if first and self.limit.is_reached():
                return made, first
            if phase:
                self._tell(phase, first * columns, rows * columns)
            part = lines[first : first + step]
            made[part] = self._codes(plan, (part, everything))
            if got is not None and (made[part] != got[part]).any():
                break
        return made, len(lines)

    def _codes(self, plan: Choices, sample: Sample | FlatSample | None = None) -> Codes:
        """Return the codes of a plan, whose work counts."""
        codes = self.subject.codes(plan, sample)
        self.limit.count(self.subject.work(codes.size))
        return codes

    def _tell(self, phase: str, done: int, planned: int) -> None:
        if self.report is not None:
            self.report(phase, done, planned)


def _is_one_choice(first: Cause, second: Cause) -> bool:
    """Return whether two causes set the same choice; a reference, which sets many, leaves each of them to others."""
    one, other = ({each.aspect, *dict(each.beside)} for each in (first, second))
    return first.aspect == second.aspect or (bool(one & other) and max(len(one), len(other)) == 2)


def _rank(first: Cause, second: Cause) -> int:
    """Return the rank of a pair: lower for cheap, usual choices."""
    one, other = first.aspect, second.aspect
    if (one == "sharing" and other in OF_RANGES) or (other == "sharing" and one in OF_RANGES):
        return first.rank + second.rank
    wrong = (one not in ADDING) + (other not in ADDING)
    return 2 * (first.rank + second.rank) + (0, 4, 10)[wrong] - (one in CHEAP or other in CHEAP)
