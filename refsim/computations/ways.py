"""A cause as data: the choice of a computation that it changes, and the new value; families of causes for users."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from refsim.conversions import RoundingName, decode, encode
from refsim.formats import F32, Format
from refsim.render.cards import FieldsCard
from refsim.sources import Source

Codes = NDArray[np.unsignedinteger]
Indices = NDArray[np.int64]
Sample = tuple[Indices, Indices]
"""Rows and columns of an output; every pair of them is an element of the sample."""


@dataclass(frozen=True, eq=False)
class FlatSample:
    """Rows of a matrix, and the flat positions in an output of their elements and of all that follows the matrix."""

    rows: Indices
    at: Indices


class Family(StrEnum):
    """The name that a user gives to a kind of cause."""

    ACCUMULATOR = "accumulator width and chip"
    FAST_SLOW = "fast / slow accumulation"
    SPLIT_K = "split-K"
    REDUCTION_ORDER = "reduction order"
    PROMOTION_ORDER = "promotion order"
    CONTRACTION = "contraction"
    PROMOTION = "promotion order and contraction"
    SCALE_RULE = "scale rule"
    AMAX = "amax of other elements"
    CLAMP = "bound of amax or scale"
    SCALE_LAYOUT = "scale layout"
    FNUZ = "FN / FNUZ"
    FORMAT = "format"
    ROUNDING = "rounding mode"
    TIES = "tie handling"
    DOUBLE_ROUNDING = "double rounding"
    FLUSHED = "flushed subnormals"
    SATURATION = "saturation"
    NAN = "NaN dropped or kept"
    TRANSPOSED = "transposed"
    SWIZZLE = "swizzle not undone"
    FRAGMENT = "registers of a fragment exchanged"
    TAIL = "tail"
    PADS = "pads not written"
    SHIFTED = "off by one"
    PACKING = "order of codes in a byte"
    ZERO_SIGN = "sign of zero or of all"
    ACCUMULAND = "where C enters"
    SPECIAL = "special function"
    NO_EPSILON = "no epsilon"
    EPSILON = "another epsilon"
    COUNT = "divided by another count"
    MAXIMUM = "maximum not subtracted or another"
    MEAN = "mean subtracted or not"
    BASE = "2^x, not e^x"
    SCALE_TWICE = "the scale applied twice"
    NO_SCALE = "the scale left out"
    WEIGHTS = "weights of another place"
    NO_WEIGHTS = "weights left out or plus one"
    GATE = "gate left out or of another place"
    HEAD_DEPTH = "the scale of another head dimension"
    MASK = "another mask"
    SINK = "another sink"
    CAP = "another cap of scores"
    RESCALING = "older sums not rescaled"
    HEADS = "keys or values of another head"
    QUERY_ROWS = "rows of another tile"
    KEY_TILES = "size of key tiles"
    BATCH = "another batch or expert"
    ZERO_POINT = "zero point"
    HOST = "computed on the host"
    FACTOR = "another factor"
    OFFSET = "an offset"
    ORDER = "elements in other places"
    VALUES = "a map of values"
    STEPS = "a step left out or in another place"
    ROTATION = "rotary embedding"
    SLOTS = "rows of another slot"


OF_ROUNDING = {Family.SPECIAL, Family.CONTRACTION, Family.PROMOTION_ORDER, Family.REDUCTION_ORDER, Family.FLUSHED}
"""Families of ways that change a value by no more than a few roundings."""


class Choices(SimpleNamespace):
    """A plan of a computation: each aspect with the value that is chosen for it."""

    def but(self, **changed: Any) -> "Choices":
        """Return the plan with other values of some aspects."""
        return Choices(**{**vars(self), **changed})


@dataclass(frozen=True, repr=False)
class Cause(FieldsCard):
    """One changed choice of a plan: `aspect` is the field of the plan, `value` its new value.

    `rank` orders causes, cheap and usual ones first. `families(had, value)` names the family where a choice has several
    parts. `beside`: further fields that change too, as a reference does all of its steps in its own way.
    """

    family: str
    says: str
    aspect: str
    value: Any
    source: Source
    rank: int = 1
    families: Callable[[Any, Any], str] | None = None
    beside: tuple[tuple[str, Any], ...] = ()

    def seen_from(self, had: "Cause | None") -> "Cause":
        """Return the cause with its family from a plan that has made the choice `had`.

        A cause that undoes a choice has the family of that choice.
        """
        if had is None:
            return self
        if self.families is not None:
            return replace(self, family=self.families(had.value, self.value))
        return replace(self, family=had.family) if self.rank == 0 < had.rank else self

    def of(self, plan: Choices) -> Choices:
        """Return the plan with this choice made."""
        return plan.but(**{self.aspect: self.value, **dict(self.beside)})

    def is_made(self, plan: Choices) -> bool:
        """Return whether the plan has made this choice already."""
        return all(getattr(plan, aspect) == value for aspect, value in ((self.aspect, self.value), *self.beside))

    def __str__(self) -> str:
        return f"{self.family}: {self.says}"


@dataclass(frozen=True)
class Way:
    """One way to do a step; the step defines the arguments and the result of `apply`.

    `families(had, way)` names the family where ways differ in several parts, as for a Cause.
    """

    name: str
    family: Family
    source: Source
    apply: Any = None
    rank: int = 1

    families: ClassVar[Any] = None

    def cause(self, aspect: str, says: str = "{}") -> Cause:
        """Return the cause that makes this choice of an aspect; `says` is the sentence around the name."""
        return Cause(self.family, says.format(self.name), aspect, self, self.source, self.rank, self.families)


def ways_of(
    family: Family, source: Source, rows: Mapping[str, Any], *, usual_rank: int = 0, rank: int = 1
) -> tuple[Way, ...]:
    """Return ways of one family, by name with what they apply; the first of them is the usual one."""
    return tuple(Way(name, family, source, rows[name], rank if at else usual_rank) for at, name in enumerate(rows))


def worded(family: Family, source: Source, *names: str, usual_rank: int = 0) -> tuple[Way, ...]:
    """Return ways of which a computation needs only their identity, the usual one first."""
    return ways_of(family, source, dict.fromkeys(names), usual_rank=usual_rank)


def seen_by(usual: Way, aspect: str, ways: Sequence[Way]) -> Iterator[Cause]:
    """Yield the causes of an aspect whose usual way depends on the operands: its rank is 0."""
    for way in ways:
        yield replace(way.cause(aspect), rank=0 if way is usual else way.rank)


class DoesNotApplyError(Exception):
    """A choice that does not apply to these operands, such as the transpose of a matrix that is not square."""


def beside(step: int, values: NDArray[Any], axis: int = 0) -> NDArray[Any]:
    """Return for each place on an axis the values `step` places on; at the edge the last ones."""
    extent = values.shape[axis]
    return np.take(values, np.clip(np.arange(extent) + step, 0, extent - 1), axis)


def rounded_to(
    values: NDArray[np.floating], format: Format, rounding: RoundingName = "nearest-even"
) -> NDArray[np.float32]:
    """Return values rounded in a format, as float32."""
    return decode(encode(values, format, rounding), format, np.float32)


def held_in(format: Format, total: NDArray[np.float32], rounding: RoundingName = "nearest-even") -> NDArray[np.float32]:
    """Return sums rounded to the format that holds them; float32 holds every sum."""
    return total if format is F32 else rounded_to(total, format, rounding)


def subnormals_flushed(codes: Codes, format: Format) -> Codes:
    """Return codes with every subnormal replaced by a zero of its sign."""
    magnitude = codes & codes.dtype.type((format.code_limit - 1) ^ format.sign_mask)
    return np.where(magnitude < (1 << format.mantissa_bits), codes & codes.dtype.type(format.sign_mask), codes)


def lines_chosen(counts: Indices, most: int) -> Indices:
    """Return at most `most` line numbers in order: three quarters with the largest counts, the rest drawn."""
    if len(counts) <= most:
        return np.arange(len(counts))
    order = np.argsort(-counts, kind="stable")
    first = order[: most * 3 // 4]
    rest = np.random.default_rng(0).permutation(order[most * 3 // 4 :])[: most - len(first)]
    return np.sort(np.concatenate([first, rest]))
