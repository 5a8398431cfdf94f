"""General shapes of a difference: what two outputs show alone, whatever computed them.

A shape is a factor, an offset, another order, a clamp or a map of values. It counts only if it holds for every element,
and if chance fits it with a probability below 2^-32. That its factors are given numbers takes 6.5 bits: chance may put
an unrelated number there once in about 90 times. Each number stands for the interval of reals that round to it.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from refsim.causes.orders import orders_of
from refsim.causes.search import Named
from refsim.computations.ways import Cause, Codes, Family
from refsim.conversions import decode
from refsim.formats import FORMATS, ElementType, Integer
from refsim.sources import IEEE754, OCP_MX, PTX

Reals = NDArray[np.float64]
Fold = Callable[[NDArray[np.generic]], NDArray[np.generic]]
LEAST_BITS = 32
"""The least evidence: bits by which the elements of each group agree beyond the first, over all groups."""
LEAST_OF_VALUES = 16
LEAST_OF_GIVEN, OF_A_POWER, MOST_OF_ONE = 6.5, 3, 20
"""The least evidence that factors are given numbers, and the bits of a power of two, and at most of another number."""
NEAR = ", within one "
"""The words of a shape that holds within a rounding, not in every bit."""
MOST_ELEMENTS, MOST_MOVED, ENOUGH_ELEMENTS = 1 << 24, 1 << 22, 1 << 16
"""The most elements with a shape, the most whose order is sought, and how many are asked first."""
OF_THE_EXPONENT = np.int64(0x7FF << 52)
SIDES = (128, 64, 32, 16)
EDGE = 2.0
"""A factor counts if it is farther from 1 than this many units in the last place; nearer is a rounding."""
CODES_AS_NUMBERS = np.array([code * 2.0 ** (127 - code) for code in range(1, 255)])
"""What a block is multiplied by where the E8M0 code of its scale is taken for the number."""


def shapes_of(
    got: Codes, want: Codes, format: ElementType, known: Mapping[str, NDArray[np.generic]] | None = None
) -> list[Named]:
    """Return the first shape that turns `want` into `got` in every element, or nothing.

    Codes of one shape and `format`. `known`: scales by name, float32 or codes of E8M0, of the same computation.
    """
    differing = int((got != want).sum())
    if not differing or got.size > MOST_ELEMENTS or any((each == each.flat[0]).all() for each in (got, want)):
        return []
    pair = OutputPair(np.atleast_2d(got), np.atleast_2d(want), format)
    some = pair.some()
    held = [each[pair.differs] for each in (pair.got, pair.want)]
    is_one_code = any((each == each[0]).all() for each in held)
    for shape in (
        (_ends, _orders, _cut) if is_one_code else (_ends, _given, _factors, _offsets, _orders, _cut, _powers, _values)
    ):
        if shape is _orders and got.size > MOST_MOVED:
            continue
        if shape not in (_orders, _given) and some is not pair and next(shape(some, {}), None) is None:
            continue
        cause = next(shape(pair, known or {}), None)
        if cause is not None:
            return [Named((cause,), differing, is_whole=True, is_near=NEAR in cause.says)]
    return []


@dataclass(frozen=True, eq=False)
class OutputPair:
    """Two outputs: the codes, their values, and half the gap to the neighbours of each value."""

    got: Codes
    want: Codes
    format: ElementType

    @cached_property
    def a(self) -> Reals:
        return self._decoded(self.got)

    @cached_property
    def b(self) -> Reals:
        return self._decoded(self.want)

    def _decoded(self, codes: Codes) -> Reals:
        if isinstance(self.format, Integer):
            return np.asarray(codes.view(self.format.array_dtype or codes.dtype), np.float64)
        return np.asarray(decode(codes, self.format), np.float64)

    def some(self) -> "OutputPair":
        """Return rows of a large pair, among them the first that differs: a shape of all is a shape of these."""
        rows = max(1, ENOUGH_ELEMENTS // self.got.shape[-1])
        got, want = (each.reshape(-1, each.shape[-1]) for each in (self.got, self.want))
        if len(got) <= 2 * rows:
            return self
        first = int((got != want).any(axis=1).argmax()) // 128 * 128
        return OutputPair(got[first : first + rows], want[first : first + rows], self.format)

    @property
    def bits(self) -> int:
        """Return how many bits of a ratio one element tells."""
        return 3 if isinstance(self.format, Integer) else max(0, self.format.mantissa_bits - 1)

    @property
    def precision(self) -> float:
        """Return one unit in the last place of a number from 1 to 2."""
        return 2.0**-20 if isinstance(self.format, Integer) else 2.0**-self.format.mantissa_bits

    def half_gap(self, values: Reals) -> Reals:
        """Return half the distance from each value to the next larger one."""
        if isinstance(self.format, Integer):
            return np.full(values.shape, 0.5)
        least = self.format.min_normal if self.format.has_zero else np.finfo(np.float64).tiny
        powers = np.maximum(np.where(np.isfinite(values), np.abs(values), 1), least).view(np.int64) & OF_THE_EXPONENT
        return np.asarray(powers.view(np.float64) * 2.0 ** (-1 - self.format.mantissa_bits))

    @cached_property
    def is_free(self) -> NDArray[np.bool_]:
        """Return where both are finite and below the largest value, which may stand for anything beyond."""
        both: NDArray[np.bool_] = np.isfinite(self.a) & np.isfinite(self.b)
        if isinstance(self.format, Integer):
            return both
        return np.asarray(both & (np.maximum(np.abs(self.a), np.abs(self.b)) < self.format.max_value), np.bool_)

    @cached_property
    def ratios(self) -> tuple[Reals, Reals, NDArray[np.bool_]]:
        """Return the interval of the ratio of each two magnitudes, and where it tells something."""
        one, two = np.abs(self.a), np.abs(self.b)
        gap_one, gap_two = self.half_gap(self.a), self.half_gap(self.b)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            low, high = (one - gap_one) / (two + gap_two), (one + gap_one) / (two - gap_two)
        return low, high, self.is_free & (one > gap_one) & (two > gap_two)

    @cached_property
    def differs(self) -> NDArray[np.bool_]:
        return np.asarray(self.got != self.want, np.bool_)


# ---- groups that share one number ------------------------------------------------------------------------------------


def _groups(shape: tuple[int, ...]) -> Iterator[tuple[str, Fold]]:
    """Yield the ways to divide an output into groups, few groups first: the name of a group, and groups as rows."""
    rows, columns = int(np.prod(shape[:-1])), shape[-1]
    yield "", lambda array: array.reshape(1, -1)
    if rows > 1 and columns > 1:
        yield "row", lambda array: array.reshape(rows, columns)
        yield "column", lambda array: array.reshape(rows, columns).T
    for axis in range(len(shape) - 1) if len(shape) > 2 else ():

        def slices(array: NDArray[np.generic], axis: int = axis) -> NDArray[np.generic]:
            return np.moveaxis(array.reshape(shape), axis, 0).reshape(shape[axis], -1)

        if shape[axis] > 1:
            yield f"index of dimension {axis}", slices
    for high, wide in [(128, 128), *((1, side) for side in SIDES), *((side, 1) for side in SIDES)]:
        if rows % high or columns % wide or (high, wide) in ((rows, columns), (1, columns), (rows, 1)):
            continue

        def tiles(array: NDArray[np.generic], high: int = high, wide: int = wide) -> NDArray[np.generic]:
            parts = array.reshape(rows // high, high, columns // wide, wide)
            return parts.swapaxes(1, 2).reshape(-1, high * wide)

        yield f"block of {high} x {wide}", tiles


def _given(pair: OutputPair, known: Mapping[str, NDArray[np.generic]]) -> Iterator[Cause]:
    """Yield factors of the tensor, rows, columns or blocks that follow from an array: of its elements, or of others."""
    of_size: dict[int, list[tuple[str, Reals]]] = {}
    for name, array in known.items():
        for scales in dict.fromkeys((array.reshape(-1).tobytes(), np.asarray(array).T.reshape(-1).tobytes())):
            given = np.frombuffer(scales, array.dtype).astype(np.float64)
            values = np.exp2(given - 127) if array.dtype == np.uint8 else given
            if np.isfinite(values).all() and values.all():
                of_size.setdefault(values.size, []).append((name, values))
    for what, fold in _groups(pair.a.shape) if of_size else ():
        differs = np.asarray(fold(pair.differs)).sum(axis=1)
        if len(differs) not in of_size:
            continue
        telling = np.asarray(fold(pair.is_free & (np.abs(pair.b) > 4 * pair.half_gap(pair.b)))).sum(axis=1) > 4
        for name, values in of_size[len(differs)]:
            for words, factor in _ratios(name, values):
                if not np.isfinite(factor).all():
                    continue
                big = np.abs(factor - 1) > 2 * EDGE * pair.precision
                least = min(int(differs[factor > 1].sum()), int(differs[factor < 1].sum()))
                is_known = int(differs[big].sum()) >= LEAST_OF_VALUES or least >= LEAST_OF_VALUES
                is_idle = differs[factor == 1].any() or (big & telling & (differs == 0)).any()
                if is_known and not is_idle and _holds(pair, fold, factor[:, None], 0.0):
                    ends = [each[big] for each in _interval(*pair.ratios, fold)]
                    if not _tells(factor[big], *ends):
                        continue
                    of = f"one factor for each {what}" if what else "one factor for every element"
                    yield Cause(Family.SCALE_RULE, f"{of}{NEAR}rounding: {words}", "", None, OCP_MX["section 5.2"])


def _ratios(name: str, values: Reals) -> Iterator[tuple[str, Reals]]:
    """Yield what elements may be multiplied by where scales are used twice, inversely, not at all or of another place."""
    with np.errstate(all="ignore"):
        yield f"{name} was applied once more", values
        yield f"1 / {name}: it was left out, or its inverse was applied once more", 1 / values
        yield f"the square of {name}: its inverse was taken for it", values**2
        yield f"1 / the square of {name}: its inverse was taken for it", values**-2.0
        index, last = np.arange(values.size), values.size - 1
        places = {"the last - i": last - index, "i + 1": np.minimum(index + 1, last), "i - 1": np.maximum(index - 1, 0)}
        for bit in range(last.bit_length()):
            places[f"i ^ {1 << bit}"] = np.minimum(index ^ 1 << bit, last)
            places[f"i without bit {bit}"] = index & ~(1 << bit)
        if last % 2:
            places[f"i + {(last + 1) // 2}"] = (index + (last + 1) // 2) % values.size
        for words, place in places.items():
            ratio = values[place] / values
            for factor in (ratio, 1 / ratio):
                yield f"the number of another group of {name} was used: {words} for group i", factor


def _powers(pair: OutputPair, known: Mapping[str, NDArray[np.generic]]) -> Iterator[Cause]:
    """Yield the inverse or the square in place of each number, or its bytes in the other order."""
    if (pair.got == pair.want.byteswap()).all():
        says = "the bytes of each number lie in the other byte order"
        yield Cause(Family.ORDER, says, "", None, PTX["ld, st: address operands"])
    if not pair.bits or pair.got.size < LEAST_OF_VALUES:
        return
    b, gap = np.abs(pair.b), pair.half_gap(pair.b)
    with np.errstate(all="ignore"):
        for words, low, high in (
            ("its inverse", 1 / (b + gap), 1 / (b - gap)),
            ("its square", (b - gap) ** 2, (b + gap) ** 2),
            ("its square root", np.sqrt(b - gap), np.sqrt(b + gap)),
        ):
            a, room = np.abs(pair.a), pair.half_gap(pair.a)
            fits = (low - room <= a) & (a <= high + room) & (np.sign(pair.a) == np.sign(pair.b))
            if fits.all() and len(np.unique(pair.want)) >= 8:
                yield Cause(
                    Family.VALUES, f"each number became {words}{NEAR}rounding", "", None, IEEE754["section 4.3"]
                )


def _interval(low: Reals, high: Reals, usable: NDArray[np.bool_], fold: Fold) -> tuple[Reals, Reals]:
    """Return the interval that lies in the intervals of all usable elements of each group."""
    least = np.asarray(fold(np.where(usable, low, -np.inf)), np.float64).max(axis=1)
    return least, np.asarray(fold(np.where(usable, high, np.inf)), np.float64).min(axis=1)


def _tells(numbers: Reals, least: Reals, most: Reals) -> bool:
    """Return whether chance hardly puts numbers into these intervals; a number counts where it differs from the last."""
    with np.errstate(divide="ignore", invalid="ignore"):
        bits = np.clip(np.nan_to_num(-np.log2(np.log2(most / least))), 0, MOST_OF_ONE)
    bits = np.where(np.abs(np.frexp(numbers)[0]) == 0.5, np.minimum(bits, OF_A_POWER), bits)
    return float(bits[np.diff(numbers, prepend=np.nan) != 0].sum()) >= LEAST_OF_GIVEN


def _shared(
    pair: OutputPair, low: Reals, high: Reals, usable: NDArray[np.bool_], fold: Fold
) -> tuple[Reals, Reals, NDArray[np.int64], NDArray[np.int64]] | None:
    """Return the interval of the number that each group shares, its count of elements, and how many of them tell.

    An element tells if its value in B differs from others: a group of equal elements always shares a number. None where
    a group has no such number, or too few tell.
    """
    least, most = _interval(low, high, usable, fold)
    if (least > most).any():
        return None
    count = np.asarray(fold(usable)).sum(axis=1)
    if (count.sum() - 1) * pair.bits < LEAST_BITS:
        return None
    codes = np.sort(np.asarray(fold(np.where(usable, pair.want, 0))), axis=1)
    told = np.maximum((codes[:, 1:] != codes[:, :-1]).sum(axis=1) - (codes[:, 0] == 0), 0)
    return (least, most, count, told) if told.sum() * pair.bits >= LEAST_BITS else None


def _factors(pair: OutputPair, known: Mapping[str, NDArray[np.generic]]) -> Iterator[Cause]:
    """Yield the factor of the tensor, or of each row, column or block."""
    if not pair.bits:
        return
    low, high, usable = pair.ratios
    turned = np.where(usable & (np.signbit(pair.a) != np.signbit(pair.b)), -1.0, 1.0)
    for what, fold in _groups(pair.a.shape):
        found = _shared(pair, low, high, usable, fold)
        if found is None:
            continue
        least, most, count, told = found
        signs = np.asarray(fold(np.where(usable, turned, 0.0)), np.float64).sum(axis=1)
        if (np.abs(signs) != count).any():
            continue
        moved = (least > 1 + EDGE * pair.precision) | (most < 1 - EDGE * pair.precision) | (signs < 0)
        changed = np.asarray(fold(pair.differs)).any(axis=1) & (count > 0)
        enough = told[moved & changed].sum() * pair.bits >= LEAST_BITS
        with np.errstate(over="ignore", invalid="ignore"):
            factor = np.where(changed, np.copysign(np.sqrt(least) * np.sqrt(most), signs), 1.0)
        if not enough or 2 * (moved & changed).sum() < changed.sum() or not _holds(pair, fold, factor[:, None], 0.0):
            continue
        yield _factor_cause(pair, what, moved, changed, (least, most), signs, known)


def _holds(pair: OutputPair, fold: Fold, factor: "Reals | float", offset: "Reals | float") -> bool:
    """Return whether every element of `got` is within one rounding of `want` times a factor plus an offset."""
    a, b = (np.asarray(fold(each), np.float64) for each in (pair.a, pair.b))
    same = np.asarray(fold(~pair.differs), np.bool_)
    with np.errstate(invalid="ignore", over="ignore"):
        right = b * factor + offset
        slack = np.abs(factor) * pair.half_gap(b) + pair.half_gap(a)
        fits = np.abs(a - right) <= slack * (1 + 2.0**-20)
        if not isinstance(pair.format, Integer):
            beyond = np.abs(right) >= pair.format.max_value - pair.half_gap(np.full(1, pair.format.max_value))
            fits |= beyond & ((np.abs(a) >= pair.format.max_value) | np.isnan(a)) & (np.isnan(a) | (a * right > 0))
            edge = np.copysign(pair.format.max_value - pair.half_gap(np.full(1, pair.format.max_value)), b)
            past = (a - edge * factor - offset) * np.sign(b * factor) >= -pair.half_gap(a)
            fits |= (np.abs(b) >= pair.format.max_value) & (np.isnan(a) | past)
    idle = (np.asarray(factor) == 1.0) & (np.asarray(offset) == 0.0)
    return bool(np.where(idle, same, fits | same).all())


def _factor_cause(
    pair: OutputPair,
    what: str,
    moved: NDArray[np.bool_],
    changed: NDArray[np.bool_],
    interval: tuple[Reals, Reals],
    signs: Reals,
    known: Mapping[str, NDArray[np.generic]],
) -> Cause:
    """Return the cause of one factor, or of one a group, compared with the numbers that it may be."""
    least, most = (each[moved] for each in interval)
    minus = "-" if (signs[moved] < 0).all() else ""
    if not what:
        number = f"{minus}{_decimal(least[0], most[0])}"
        meaning = _meaning(pair.a.shape, least[0], most[0])
        words = f"every element is {number} times as large{meaning}{NEAR}rounding"
        return Cause(Family.FACTOR, words, "", None, IEEE754["section 4.3"])
    of = f"one factor for each {what}{NEAR}rounding"
    if moved.sum() < moved.size:
        of += f"; it is 1 for {moved.size - int(moved.sum())} of {moved.size}"
    scale = _as_known(moved | changed, moved, interval, known)
    if scale:
        return Cause(Family.SCALE_RULE, f"{of}: {scale}", "", None, OCP_MX["section 5.2"])
    middle = np.sqrt(least) * np.sqrt(most)
    powers = np.exp2(np.round(np.log2(middle)))
    is_powers = bool(((least <= powers) & (powers <= most)).all())
    is_narrow = bool((most / least < 1 + 2.0**-5).all()) and len(least) * pair.bits >= 20
    if is_narrow and not is_powers and _is_code_as_number(least, most):
        says = f"{of}: s * 2^(127 - s), so that E8M0 codes s were used as numbers"
        return Cause(Family.SCALE_RULE, says, "", None, OCP_MX["section 5.4.1"])
    if is_powers:
        ends = f"powers of two from {powers.min():g} to {powers.max():g}"
    else:
        ends = f"{minus}{middle.min():.6g} to {minus}{middle.max():.6g}"
    return Cause(Family.FACTOR, f"{of}: {ends}", "", None, IEEE754["section 4.3"])


def _decimal(low: float, high: float) -> str:
    """Return the shortest decimal number in an interval."""
    middle = float((low + high) / 2)
    power = 2.0 ** round(float(np.log2(abs(middle) or 1.0)))
    if low <= power <= high and (high <= low * (1 + 2.0**-6) or low == power == high):
        return f"{power:.9g}"
    if high > low * (1 + 2.0**-5) > 0:
        return f"{low:.3g} to {high:.3g}"
    return next((f"{middle:.{n}g}" for n in range(1, 17) if low <= float(f"{middle:.{n}g}") <= high), f"{middle:.17g}")


def _meaning(shape: tuple[int, ...], low: float, high: float) -> str:
    """Return what a factor may be, where the interval tells it from other numbers: " = log2(e)"."""
    if high / low - 1 > 2.0**-6:
        return ""
    sizes = [(str(extent), float(extent)) for extent in dict.fromkeys(shape) if extent > 2]
    dims = [(f"sqrt({n})", float(np.sqrt(n))) for n in (32, 64, 80, 96, 128, 192, 256)]
    numbers = [("log2(e)", float(np.log2(np.e))), ("448", 448.0), ("240", 240.0), ("6", 6.0), ("127", 127.0)]
    numbers += [("448 / 240", 448 / 240), *sizes, *dims]
    for name, value in numbers:
        if low <= value <= high:
            return f" ({name})" if not name.isdigit() else ""
        if low <= 1 / value <= high:
            return f" (1 / {name})"
    return ""


def _is_code_as_number(low: Reals, high: Reals) -> bool:
    rising = CODES_AS_NUMBERS[:0:-1]  # falls from code 2 on
    places = np.minimum(np.searchsorted(rising, low), len(rising) - 1)
    return bool(((low <= rising[places]) & (rising[places] <= high)).all())


def _as_known(
    here: NDArray[np.bool_],
    moved: NDArray[np.bool_],
    interval: tuple[Reals, Reals],
    known: Mapping[str, NDArray[np.generic]],
) -> str:
    """Return how the factors follow from scales that are given: the scale, its inverse, or their squares."""
    for name, array in known.items():
        scales = np.asarray(array)
        for given in (scales.reshape(-1), scales.T.reshape(-1)):
            if given.size != moved.size:
                continue
            is_code, unit = given.dtype == np.uint8, float(np.finfo(np.float32).eps)
            values = np.exp2(given.astype(np.float64) - 127) if is_code else given.astype(np.float64)
            with np.errstate(divide="ignore", over="ignore"):
                ways = {"": values, "1 / ": 1 / values, "the square of ": values**2, "1 / the square of ": values**-2.0}
                if is_code:
                    ways["as a number, not as 2^(s - 127), "] = given / values
            for words, numbers in ways.items():
                fits = (interval[0] <= numbers * (1 + unit)) & (numbers * (1 - unit) <= interval[1])
                if fits[here].all() and _tells(numbers[moved], interval[0][moved], interval[1][moved]):
                    return f"{words}{name}"
    return ""


def _offsets(pair: OutputPair, known: Mapping[str, NDArray[np.generic]]) -> Iterator[Cause]:
    """Yield the number that was added to the tensor, or to each row or column."""
    if not pair.bits:
        return
    is_whole = isinstance(pair.format, Integer)
    room = np.zeros(pair.a.shape) if is_whole else pair.half_gap(pair.a) + pair.half_gap(pair.b)
    with np.errstate(invalid="ignore"):
        low, high = pair.a - pair.b - room, pair.a - pair.b + room
    for what, fold in _groups(pair.a.shape):
        if what.startswith("block of 128"):
            return
        found = _shared(pair, low, high, pair.is_free, fold)
        if found is None:
            continue
        least, most, count, told = found
        widest = np.asarray(fold(np.where(pair.is_free, room, 0.0)), np.float64).max(axis=1)
        moved = ((least > widest) | (most < -widest)) & (count > 0)
        offset = np.where(moved, (np.where(moved, least, 0.0) + np.where(moved, most, 0.0)) / 2, 0.0)
        if told[moved].sum() * pair.bits < LEAST_BITS or not _holds(pair, fold, 1.0, offset[:, None]):
            continue
        if not what:
            number = _decimal(least[0], most[0])
            says = f"{number} was added to every element" + ("" if is_whole else f"{NEAR}rounding")
        else:
            ends = f"{offset[moved].min():.6g} to {offset[moved].max():.6g}"
            says = f"one number was added to each {what}: {ends}" + ("" if is_whole else f"{NEAR}rounding")
        yield Cause(Family.OFFSET, says, "", None, IEEE754["section 4.3"])


# ---- the same values in other places -----------------------------------------------------------------------------------


def _orders(pair: OutputPair, known: Mapping[str, NDArray[np.generic]]) -> Iterator[Cause]:
    says = orders_of(pair.got, pair.want)
    if says:
        yield Cause(Family.ORDER, says, "", None, PTX["ld, st: address operands"])


# ---- maps of values ------------------------------------------------------------------------------------------------------


def _ends(pair: OutputPair, known: Mapping[str, NDArray[np.generic]]) -> Iterator[Cause]:
    """Yield a bound where values end, or one below which they are zero, with the interval of the bound."""
    one, two, differs = np.abs(pair.a), np.abs(pair.b), pair.differs
    if int(differs.sum()) < 4 or np.isnan(pair.a[differs]).any() or np.isnan(pair.b[differs]).any():
        return
    bounds: dict[str, float] = {}
    for is_above, name in ((True, "above"), (False, "below")):
        here = differs & ((pair.a < pair.b) if is_above else (pair.a > pair.b))
        if not here.any():
            continue
        bound = pair.a[here][0]
        rest = pair.b[~differs & ~np.isnan(pair.b)]
        if (pair.a[here] != bound).any() or ((rest > bound) if is_above else (rest < bound)).any():
            bounds = {}
            break
        bounds[name] = float(bound)
    if bounds and bounds.get("below", -np.inf) <= bounds.get("above", np.inf):
        is_end = {float(np.abs(pair.a[differs]).max())} <= {row.max_value for row in FORMATS}
        family = Family.SATURATION if is_end else Family.VALUES
        words = ", those ".join(f"{name} {bound:g} are {bound:g}" for name, bound in bounds.items())
        yield Cause(family, f"values {words}", "", None, PTX["cvt, .satfinite"])
    kept = two[~differs & (two > 0)].min(initial=np.inf)
    largest = two[differs].max()
    if not one[differs].any() and largest < kept and np.isfinite(kept):
        says = f"magnitudes below a bound from {largest:g} to {kept:g} are zero"
        is_normal = any(largest < row.min_normal <= kept for row in FORMATS if row.has_zero)
        yield Cause(Family.FLUSHED if is_normal else Family.VALUES, says, "", None, PTX["ftz"])


def _cut(pair: OutputPair, known: Mapping[str, NDArray[np.generic]]) -> Iterator[Cause]:
    """Yield the number of mantissa bits that were kept, and whether the others were cut off or rounded."""
    if isinstance(pair.format, Integer):
        for name, narrow in (("float32", np.float32), ("float16", np.float16)):
            with np.errstate(over="ignore", invalid="ignore"):
                near = np.spacing(np.abs(pair.b).astype(narrow)).astype(np.float64)
                fits = (pair.a.astype(narrow).astype(np.float64) == pair.a) & (np.abs(pair.a - pair.b) <= near)
                inexact = pair.b.astype(narrow).astype(np.float64) != pair.b
            if fits.all() and int((inexact & pair.differs).sum()) >= LEAST_OF_VALUES:
                says = f"each integer passed through {name}{NEAR}unit in its last place"
                yield Cause(Family.ROUNDING, says, "", None, IEEE754["section 4.3"])
        return
    if pair.format.mantissa_bits < 7:
        return
    low_bits = int(np.bitwise_or.reduce(pair.got[np.isfinite(pair.a)].reshape(-1), initial=0))
    kept = pair.format.mantissa_bits - ((low_bits & -low_bits).bit_length() - 1 if low_bits else 0)
    if not 0 < kept < pair.format.mantissa_bits - 1 or pair.got.size < LEAST_OF_VALUES:
        return
    unit = pair.got.dtype.type((1 << (pair.format.mantissa_bits - kept)) - 1)
    ways = {"cut off": pair.want & ~unit, "rounded away from zero": (pair.want + unit) & ~unit}
    for how, made in ways.items():
        if (made == pair.got).all():
            says = f"{kept} bits of each mantissa are kept, the others are {how}"
            yield Cause(Family.ROUNDING, says, "", None, IEEE754["section 4.3"])


def _values(pair: OutputPair, known: Mapping[str, NDArray[np.generic]]) -> Iterator[Cause]:
    """Yield a map from values to values, where each value occurs several times and always becomes the same one."""
    right, places = np.unique(pair.want, return_inverse=True)
    places = places.reshape(-1)
    if len(right) < 3:
        return
    flat, first = pair.got.reshape(-1), np.zeros(len(right), pair.got.dtype)
    first[places] = flat
    if (first[places] != flat).any():
        return
    changed = first != right
    again = np.bincount(places)[changed] - 1
    several = int((again > 0).sum())
    if (
        int(again.sum()) < max(LEAST_OF_VALUES, int(pair.differs.sum()) // 2)
        or several < 2
        or len(np.unique(first)) < 2
    ):
        return
    show = OutputPair(first, right, pair.format)
    some = [f"{show.b[at]:g} -> {show.a[at]:g}" for at in np.flatnonzero(changed)[:4]]
    more = f", {int(changed.sum()) - 4} more" if changed.sum() > 4 else ""
    says = f"each value always becomes the same other value: {', '.join(some)}{more}"
    yield Cause(Family.VALUES, says, "", None, PTX["cvt"])
