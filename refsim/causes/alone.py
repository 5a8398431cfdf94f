"""Explain two outputs without operands: one output made of the other, in either direction, from the codes alone."""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.causes.effort import LOOKED_AFTER, Limit
from refsim.causes.explanation import DiffExplanation, DiffOutcome
from refsim.causes.regions import seen
from refsim.causes.search import CauseSearch, Found, Named, told_apart
from refsim.causes.shapes import shapes_of
from refsim.causes.unwritten import unwritten_causes
from refsim.compare.readings import Misreading, readings
from refsim.computations.engine import PLACED, Aspect, Computation
from refsim.computations.reading import exchanged, flushed_below
from refsim.computations.ways import Cause, Choices, Codes, DoesNotApplyError, Family, Sample, Way
from refsim.conversions import OVERFLOWS, decode, encode
from refsim.errors import RefsimError
from refsim.formats import BF16, F16, FORMATS, TF32, ElementType, Format, Integer
from refsim.sources import FNUZ, IEEE754, OCP_MX, PTX

POWERS = (1, -1, 2, -2, 3, -3, 4, -4, 8, -8)


AS_THEY_ARE = Way("are as they are", Family.FORMAT, PTX["st"], lambda codes, format: codes, 0)


def _written_as(other: Format, codes: Codes, format: Format) -> Codes:
    """Return the values as codes of another format, in place of codes of this one."""
    made = encode(decode(codes, format), other)
    if int(made.max(initial=0)) >= format.code_limit:
        raise DoesNotApplyError
    return np.asarray(made)


def _read_as(other: Format, codes: Codes, format: Format) -> Codes:
    """Return the codes read as another format's, their values written in this one."""
    if int(codes.max(initial=0)) >= other.code_limit:
        raise DoesNotApplyError
    return np.asarray(encode(decode(codes, other), format))


def _zeros_plus(codes: Codes, format: Format) -> Codes:
    """Return codes without signs of zeros; formats with a single zero stay unchanged."""
    zeros = decode(codes, format) == 0
    return np.where(zeros, encode(np.zeros(()), format), codes).astype(codes.dtype)


def _times(power: int, codes: Codes, format: Format) -> Codes:
    return np.asarray(encode(decode(codes, format) * 2.0**power, format))


def _through(narrow: Format, codes: Codes, format: Format) -> Codes:
    return np.asarray(encode(decode(encode(decode(codes, format), narrow), narrow), format))


def _ended(saturated: bool, codes: Codes, format: Format) -> Codes:
    """Return codes with the largest values for infinities (NaN where the format has none), or the reverse."""
    values = decode(codes, format)
    if saturated:
        endless = np.isinf(values) if format.has_infinity else np.isnan(values)
        ends = encode(np.copysign(format.max_value, values), format)
        return np.where(endless, ends, codes).astype(codes.dtype)
    policy = next((each for each in OVERFLOWS[1:] if _has(format, each)), None)
    if policy is None:
        raise DoesNotApplyError
    beyond = encode(np.copysign(np.inf, values), format, overflow=policy)
    return np.where(np.abs(values) == format.max_value, beyond, codes).astype(codes.dtype)


def _has(format: Format, policy: str) -> bool:
    """Return whether a format has an overflow policy."""
    try:
        encode(np.array([np.inf]), format, overflow=policy)  # type: ignore[arg-type]
    except RefsimError:
        return False
    return True


@functools.cache
def rewritings(format: Format) -> tuple[Way, ...]:
    """Return every change of codes of a format, `apply(codes, format)`, the identity first."""
    found = [AS_THEY_ARE]
    for other in FORMATS:
        if other is format or other.code_bits != format.code_bits or other.padding_bits or not other.signed:
            continue
        fields = (other.exponent_bits, other.mantissa_bits) == (format.exponent_bits, format.mantissa_bits)
        family = Family.FNUZ if fields else Family.FORMAT
        for name, change in ((f"are codes of {other}", _written_as), (f"are {format} codes read as {other}", _read_as)):
            found.append(Way(name, family, FNUZ["table 1"], partial(change, other), 1 if fields else 2))
    if format.bits == 4:
        name = "lie with the two codes of a byte exchanged"
        found.append(Way(name, Family.PACKING, PTX["cvt, e2m1x2"], lambda codes, format: exchanged(codes)))
    if format.sign_mask and format.has_zero:
        found.append(Way("that are zeros are +0", Family.ZERO_SIGN, IEEE754["section 6.3"], _zeros_plus))
    flushing = {row.min_normal for row in FORMATS if row.has_zero and row.min_normal < 0.1} if format.has_zero else ()
    for least in sorted(flushing):
        name = f"below {least:g} in magnitude are zeros"
        found.append(Way(name, Family.FLUSHED, PTX["ftz"], partial(flushed_below, least)))
    for saturated, name in ((True, "that are infinite are the largest values"), (False, "at the limit are infinite")):
        found.append(Way(name, Family.SATURATION, PTX["cvt, .satfinite"], partial(_ended, saturated)))
    for narrow in (BF16, F16, TF32, *(row for row in FORMATS if row.bits == 8 and row.signed and row.mantissa_bits)):
        if narrow.mantissa_bits < format.mantissa_bits:
            found.append(
                Way(f"are rounded to {narrow}", Family.ROUNDING, IEEE754["section 4.3"], partial(_through, narrow), 2)
            )
    for power in POWERS:
        found.append(
            Way(f"are 2^{power} times as large", Family.SCALE_RULE, OCP_MX["section 5.2"], partial(_times, power), 2)
        )
    return tuple(found)


@dataclass(frozen=True, eq=False)
class OtherOutput(Computation):
    """The other output, from which this one may be made: by a change of each element, and of its place."""

    right: Codes
    format: Format

    is_sampled = False
    aspects = Aspect("rewritten", lambda own: rewritings(own.format), AS_THEY_ARE, says="elements {}"), PLACED

    @property
    def shape(self) -> tuple[int, ...]:
        return self.right.shape

    def coded(self, plan: Choices, sample: Sample | None) -> Codes:
        return plan.rewritten.apply(self.right, self.format)  # type: ignore[no-any-return]

    def another(self, seed: int, *, wide: bool = False) -> "OtherOutput":
        """Return drawn codes of the format in the same shape."""
        random = np.random.default_rng(seed)
        return OtherOutput(random.integers(0, self.format.code_limit, self.shape).astype(self.right.dtype), self.format)


LEAST = 4
SHAPES_OF_VALUES = (Family.FACTOR, Family.OFFSET, Family.VALUES)
_FAMILIES = {
    "NaN dropped": Family.NAN,
    "off-by-one row": Family.SHIFTED,
    "off-by-one column": Family.SHIFTED,
    "flushed subnormals": Family.FLUSHED,
    "infinity saturated": Family.SATURATION,
    "infinity propagated": Family.SATURATION,
    "FN / FNUZ": Family.FNUZ,
}
"""The readings of `compare` that go beyond a rewriting: they leave some elements free, or allow one of two codes."""


def between_outputs(
    got: Codes,
    want: Codes,
    format: ElementType,
    limit: Limit,
    report: Callable[[str, int, int], None] | None,
    is_right: bool = False,
    known: Mapping[str, NDArray[Any]] | None = None,
) -> DiffExplanation:
    """Return the explanation that turns B into A, or A into B; `is_right`: B was computed here, so it is complete.

    `known`: arrays of the same computation that may hold scales, by name.
    """
    if isinstance(format, Integer):
        return _between_integers(got, want, format, is_right, known)
    directions = (("A", got, want), ("B", want, got))
    found: list[tuple[str, Found, OtherOutput]] = []
    for made, one, other in directions:
        subject = OtherOutput(other, format)
        is_complete = made == "B" and is_right
        shapes = partial(_shapes, format, is_complete, made, known)
        tried = CauseSearch(subject, subject.usual, one, limit, other, report, shapes).run()
        if is_nan_alone(one, format):
            tried.whole.clear()
        elif not tried.whole:
            tried.whole += _by_readings(one, other, format, limit)
        found.append((made, tried, subject))
    fitting = [each for each in found if each[1].whole]
    fitting.sort(key=lambda each: _looseness(each[1].whole[0]))
    differing = found[0][1].differing
    if differing < LEAST:
        fitting = []
    made, tried, subject = fitting[0] if fitting else found[0]
    named = tuple(_plain(tried.whole)) if fitting else ()
    is_little = differing < LEAST and any(each.whole for _, each, _ in found)
    outcome = DiffOutcome.EXPLAINED if named else DiffOutcome.TOO_LITTLE if is_little else DiffOutcome.UNEXPLAINED
    words = f"what becomes of {'B' if made == 'A' else 'A'}: {named[0]}" if named else ""
    where = seen(got, want, format, "the right result" if is_right else "B") if _is_open(named) else ()
    said: dict[str, Any] = {"a_is" if made == "A" else "b_is": words, "made": made, "seen": where, **tried.tried()}
    return DiffExplanation(outcome, differing, got.size, got.size, named, apart=_apart(subject, named), **said)


def _between_integers(
    got: Codes, want: Codes, format: Integer, is_right: bool, known: Mapping[str, NDArray[Any]] | None
) -> DiffExplanation:
    """Return the explanation of integers: an uninitialized part, or the shape of the difference."""
    differing, named = int((got != want).sum()), tuple(_shapes(format, False, "A", known, got, want))
    outcome = DiffOutcome.EXPLAINED if named else DiffOutcome.UNEXPLAINED
    words = f"what becomes of B: {named[0]}" if named else ""
    where = seen(got, want, format, "the right result" if is_right else "B") if _is_open(named) else ()
    return DiffExplanation(outcome, differing, got.size, got.size, named, a_is=words, seen=where)


def _is_open(named: tuple[Named, ...]) -> bool:
    """Return whether the differences have no cause, or one that may be of either side."""
    return all(cause.family == Family.TAIL for each in named for cause in each.causes)


def _shapes(
    format: ElementType,
    is_complete: bool,
    made: str,
    known: Mapping[str, NDArray[Any]] | None,
    got: Codes,
    want: Codes,
) -> list[Named]:
    """Return the uninitialized part, or the shape of the difference; shapes describe A alone."""
    unwritten = [] if is_complete else unwritten_causes(got, want, format)
    return unwritten or (shapes_of(got, want, format, known) if made == "A" else [])


def is_nan_alone(codes: Codes, format: Format) -> bool:
    """Return whether every element is a NaN, which any mistake can cause."""
    return bool(np.isnan(decode(codes, format)).all())


def _looseness(named: Named) -> int:
    """Return 0 for a cause, 1 for a shape of values, 2 where values are free, as a dropped NaN may be any number."""
    families = {cause.family for cause in named.causes}
    return 2 if Family.NAN in families else int(not families.isdisjoint(SHAPES_OF_VALUES))


def _plain(whole: list[Named]) -> list[Named]:
    """Return single causes before pairs, each in the order of rank."""
    return sorted(whole, key=lambda each: (len(each.causes), sum(cause.rank for cause in each.causes)))


def _apart(subject: OtherOutput, named: tuple[Named, ...]) -> tuple[str, ...]:
    """Return sentences that distinguish rewritings; readings and tails have no plans to distinguish."""
    plans = tuple(each for each in named if all(cause.aspect for cause in each.causes))
    return told_apart(subject, subject.usual, plans)


def _by_readings(got: Codes, want: Codes, format: Format, limit: Limit) -> list[Named]:
    """Return the readings of `compare` that fit every element, as causes."""
    differing, source = int((got != want).sum()), PTX["cvt, ld, st"]
    return [
        Named((Cause(_FAMILIES[reading.suspect], reading.says, "", None, source),), differing, is_whole=True)
        for reading in readings()
        if got.size <= LOOKED_AFTER or not limit.is_reached()
        if reading.suspect in _FAMILIES and differing >= reading.least and reading.fits(got, want, format)
        if _FAMILIES[reading.suspect] is not Family.NAN or differing < want.size  # an output of only NaN fits anything
        if _FAMILIES[reading.suspect] is not Family.SHIFTED or _is_seen(reading, got != want)
    ]


def _is_seen(reading: Misreading, differing: NDArray[np.bool_]) -> bool:
    """Return whether enough elements differ where a shift decides; the line at the edge may hold anything."""
    lines = np.moveaxis(differing, -2 if reading.suspect.endswith("row") else -1, 0)
    return int((lines[1:] if "behind" in reading.says else lines[:-1]).sum()) >= LEAST
