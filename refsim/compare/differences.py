"""The bit diff: which elements differ, in which pattern, and why; and the comparison with values that have a bound."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, Protocol, get_args

import numpy as np
from numpy.typing import NDArray

from refsim.compare.code_line import CodeLine, Codes, code_line, codes_of, distances
from refsim.compare.mismatch import LISTED_ELEMENTS, Element, Mismatch, number
from refsim.conversions import decode
from refsim.errors import RefsimError, check_named
from refsim.formats import ElementType, Format
from refsim.integers import is_whole
from refsim.layouts.holders import spoken
from refsim.typed_arrays import native

CHANCE = 0.005  # a pattern is reported only where random positions would show it less often than this


def place_patterns(flat: NDArray[np.intp], shape: tuple[int, ...]) -> list[str]:
    """Return sentences on the positions of the differences; `flat` are their flat indices in an array of `shape`."""
    total = math.prod(shape)
    if len(flat) == total:
        return ["every element differs"] if total > 1 else []
    if len(flat) == 1:
        ends = {0: "only the first element", total - 1: "only the last element"}
        return [ends[int(flat[0])]] if int(flat[0]) in ends else []
    names = {1: ["index"], 2: ["row", "col"]}.get(len(shape), [f"axis {axis}" for axis in range(len(shape))])
    axes = list(zip(names, np.unravel_index(flat, shape), shape, strict=True))
    distinct = [len(np.unique(coordinates)) for _, coordinates, _ in axes]
    parts = [text for axis in axes for text in _axis_patterns(*axis, whole=math.prod(distinct) == len(flat))]
    return [f"all differences have {' and '.join(parts)}"] if parts else []


def _axis_patterns(name: str, coordinates: NDArray[np.intp], extent: int, *, whole: bool) -> list[str]:
    """Return what coordinates along one axis share; `whole`: the differences fill the grid of their coordinates."""
    present = np.zeros(extent, np.bool_)
    present[coordinates] = True
    distinct = np.flatnonzero(present)
    if len(distinct) == extent:
        return []
    if len(distinct) == 1:
        return [f"{name} = {distinct[0]}"]
    span = _span_pattern(name, distinct, extent, whole=whole)
    residues = _residue_pattern(name, distinct, extent)
    return [text for text in (residues, span) if text]


def _residue_pattern(name: str, distinct: NDArray[np.intp], extent: int) -> str:
    """Return the residue that the coordinates share and that is the least likely by chance: `row % 8 = 3`."""
    best, rarest = "", math.log(CHANCE)
    for modulus in (2, 4, 8, 16, 32, 64, 128, 256):
        hit = np.flatnonzero(np.bincount(distinct % modulus, minlength=modulus))
        if modulus > extent // 2 or len(hit) > min(8, modulus // 2):
            continue
        rarity = math.log(math.comb(modulus, len(hit))) + len(distinct) * math.log(len(hit) / modulus)
        if rarity < rarest:
            listed = f"= {hit[0]}" if len(hit) == 1 else f"in {{{', '.join(map(str, hit))}}}"
            best, rarest = f"{name} % {modulus} {listed}", rarity
    return best


def _span_pattern(name: str, distinct: NDArray[np.intp], extent: int, *, whole: bool) -> str:
    """Return the range that the coordinates lie in, where chance would rarely confine them to it."""
    low, high = int(distinct[0]), int(distinct[-1])
    span = high - low + 1
    filled = span == len(distinct)
    if len(distinct) * math.log(span / extent) > math.log(CHANCE) and not (filled and (whole or span <= extent // 2)):
        return ""
    block = next((size for size in (8, 16, 32, 64, 128, 256) if low // size == high // size), 0)
    if filled:
        place = "the tail, " if high == extent - 1 else ""
        return f"{name} in {low}..{high} ({place}one contiguous range)"
    if high == extent - 1:
        return f"{name} >= {low} (of {extent})"
    return f"{name} // {block} = {low // block}" if block and block < 2 * span else f"{name} in {low}..{high}"


def value_patterns(got: Codes, want: Codes, line: CodeLine) -> list[str]:
    """Return a sentence, or none, on what the values have in common; both arrays hold differing elements only."""
    if (line.is_nan(got) & line.is_nan(want)).all():
        allowed = 'nan="any-payload" allows it, Promise.BITWISE_EXCEPT_NAN_PAYLOAD for a kernel'
        return [f"every difference is the payload of a NaN: {allowed}"]
    if not line.integer and not (line.order(got) | line.order(want)).any():
        return ["every difference is the sign of a zero"]
    if len(got) < 2:
        return []
    digits = (line.bits + 3) // 4
    if (got == got[0]).all():
        return [f"every wrong element is 0x{int(got[0]):0{digits}x} {number(line.value(int(got[0])))}".rstrip()]
    flipped = got ^ want
    if (flipped == flipped[0]).all():
        return [f"every difference is the bit mask 0x{int(flipped[0]):0{digits}x}"]
    steps, unordered = distances(got, want, line)
    if unordered.any():
        return []
    here, there = line.order(got), line.order(want)
    below = here < there
    if (steps == steps[0]).all() and (below == below[0]).all():
        return [f"every difference is {'-' if below[0] else '+'}{int(steps[0])} ulp"]
    if len(got) >= 8 and (below.all() or (here > there).all()):
        return [f"got is {'below' if below[0] else 'above'} want in every difference"]
    return []


Owner = Callable[..., "str | Mapping[str, object] | None"]
NanPolicy = Literal["bitwise", "any-payload"]
NAN_POLICIES: tuple[NanPolicy, ...] = get_args(NanPolicy)


class Layout(Protocol):
    """The part of a layout that attribution reads: name, shape, and the (thread, value) that holds an element."""

    @property
    def name(self) -> str: ...
    @property
    def shape(self) -> tuple[int, int]: ...
    def holder(self, row: int, col: int) -> tuple[Any, Any]:
        """Return the thread that holds an element, and the number of its value there."""


_PART = 1 << 24  # codes


def bits(
    got: NDArray[Any],
    want: NDArray[Any],
    format: str | ElementType | None = None,
    layout: Layout | None = None,
    owner: Owner | None = None,
    *,
    nan: NanPolicy = "bitwise",
    within_ulps: int = 0,
    name: str = "",
) -> Mismatch:
    """Compare two arrays bit for bit: e4m3 0x7e against 0x7f is one difference, NaN against 448.

    `got`, `want`: equal shapes; codes (unsigned), or floats that are viewed as codes. `format` names the codes when the
    dtypes do not; s8 to u64 and f64 are plain arrays. `layout` (2-D) says which lane holds an element. `owner(*index)`
    returns the thread that wrote it: a text, or a dict such as {"block": 3, "thread": 17, "address": 0x7f00}.
    `nan="any-payload"` lets any NaN stand for any other. `within_ulps` accepts that distance along the format's ordered
    codes; a NaN never stands for a number.
    Raises RefsimError for shapes, dtypes or formats that do not match.
    bits(np.uint8([8, 8]), np.uint8([8, 9]), "e4m3").count is 1.
    Source: defined here; IEEE 754 section 5.3.1 (nextUp) for a distance of one.
    """
    got, want = array_named("got", got), array_named("want", want)
    _check(got, want, layout, nan, within_ulps, name)
    line = code_line(got.dtype, want.dtype, format)
    got_codes, want_codes = codes_of(got), codes_of(want)
    flat = _differing(got_codes, want_codes)
    steps, unordered = distances(got_codes[flat], want_codes[flat], line)
    if nan == "any-payload" or within_ulps:
        same = line.is_nan(got_codes[flat]) & line.is_nan(want_codes[flat]) & (nan == "any-payload")
        keep = ~same & (unordered | (steps > np.uint64(min(within_ulps, 2**64 - 1))) | (within_ulps == 0))
        flat, steps, unordered = flat[keep], steps[keep], unordered[keep]
    label = label_of(name, layout)
    found = Mismatch(len(flat), got.size, got.shape, line.name, line.bits, label, nan, int(within_ulps))
    if not found:
        return found
    worst = int(np.argmax(np.where(unordered, np.uint64(2**64 - 1), steps)))

    def element(position: int) -> Element:
        index = tuple(int(i) for i in np.unravel_index(flat[position], got.shape))
        pair = (got_codes[flat[position]], want_codes[flat[position]])
        sign = 1 if line.order(pair[0]) >= line.order(pair[1]) else -1
        has, right = int(pair[0]), int(pair[1])
        distance = None if unordered[position] else sign * int(steps[position])
        return Element(
            index, has, right, line.value(has), line.value(right), distance, attribution(index, layout, owner)
        )

    patterns = place_patterns(flat, got.shape) + value_patterns(got_codes[flat], want_codes[flat], line)
    listed = tuple(element(position) for position in range(min(len(flat), LISTED_ELEMENTS)))
    return replace(found, first=listed[0], worst=element(worst), patterns=tuple(patterns), elements=listed)


def _differing(got: NDArray[Any], want: NDArray[Any]) -> NDArray[np.intp]:
    """Return the positions of differing codes; large arrays are compared in parts, to spare memory."""
    parts = range(0, max(got.size, 1), _PART)
    found = [first + np.flatnonzero(got[first : first + _PART] != want[first : first + _PART]) for first in parts]
    return found[0] if len(found) == 1 else np.concatenate(found)


def _check(
    got: NDArray[Any], want: NDArray[Any], layout: Layout | None, nan: str, within_ulps: object, name: str
) -> None:
    if got.shape != want.shape:
        what, rule = f"got has shape {got.shape}, want has shape {want.shape}", "both arrays have one shape"
        raise RefsimError("bad-shape", what, name, rule, "pass got.reshape(want.shape) if only the shapes differ")
    check_named("NaN policy", nan, NAN_POLICIES)
    if not is_whole(within_ulps):
        raise RefsimError("bad-bound", f"within_ulps must be an integer from 0, not {within_ulps!r}")
    if layout is not None and got.shape != tuple(layout.shape):
        raise RefsimError("bad-shape", f"the array has shape {got.shape}, layout {layout.name} {layout.shape}")


def array_named(label: str, array: object) -> NDArray[Any]:
    """Return the argument as a NumPy array, a NumPy scalar without axes; other objects raise an error with `label`."""
    if not isinstance(array, np.ndarray | np.generic):
        raise RefsimError("not-an-array", f"{label} must be a NumPy array, not {type(array).__name__}")
    return native(np.asarray(array))


def label_of(name: str, layout: Layout | None) -> str:
    """Return the name of the elements in a report: the output's name, else the operand of the layout."""
    return name if name or layout is None else layout.name.rpartition(".")[2].upper()


def attribution(index: tuple[int, ...], layout: Layout | None, owner: Owner | None) -> str:
    """Return a sentence on the thread that holds an element and the thread that wrote it; "" where neither is known."""
    parts = []
    if layout is not None:
        thread, value = layout.holder(*index)
        parts.append(f"held by {spoken(layout, int(thread), int(value))}")
    named = owner(*index) if owner is not None else None
    if isinstance(named, Mapping):
        shown = {key: hex(at) if key == "address" and isinstance(at, int) else at for key, at in named.items()}
        parts.append("written by " + ", ".join(f"{key} {at}" for key, at in shown.items()))
    elif named:
        parts.append(str(named))
    return "; ".join(parts)


def within_bound(
    got: NDArray[Any],
    value: NDArray[np.float64],
    bound: NDArray[np.float64],
    format: str | Format | None = None,
    layout: Layout | None = None,
    owner: Owner | None = None,
    *,
    name: str = "",
) -> Mismatch:
    """Return the elements of `got` whose decoded value differs from `value` by more than `bound`.

    `value` and `bound` are float64, absolute, and have the shape of `got`. An element agrees where |decode(got) -
    value| <= bound, in float64; the sign of a zero does not count. Where `value` is NaN the element must be a NaN of
    any payload, and a NaN agrees nowhere else. Where `value` is infinite the element must be that infinity, unless the
    bound is infinite too: such a bound accepts every number and both infinities. A code that the format does not have
    agrees with nothing. The other arguments are those of `refsim.compare.bits`. Raises RefsimError for shapes, dtypes
    or formats that do not match, and for a bound that is negative or NaN. within_bound(np.uint8([8, 9]),
    np.array([2.0**-6, 2.0**-6]), np.array([0.0, 0.0]), "e4m3").count is 1.
    Source: defined here.
    """
    got = array_named("got", got)
    value, bound = (np.asarray(each, np.float64) for each in (value, bound))
    for label, array in (("value", value), ("bound", bound)):
        if array.shape != got.shape:
            raise RefsimError("bad-shape", f"got has shape {got.shape}, {label} has shape {array.shape}", where=name)
    if not (bound >= 0).all():
        raise RefsimError("bad-bound", "a bound is negative or NaN", where=name)
    line = code_line(got.dtype, got.dtype, format)
    codes, wanted, bounds = codes_of(got), value.reshape(-1), bound.reshape(-1)
    exists = codes < line.limit if line.limit <= np.iinfo(codes.dtype).max else np.ones(codes.shape, np.bool_)
    held = np.zeros(codes.shape, np.float64)
    held[exists] = line.values(codes[exists])
    with np.errstate(all="ignore"):
        error = np.abs(held - wanted)
    is_nan, is_equal = np.isnan(held) & np.isnan(wanted), held == wanted  # equal infinities have no difference
    is_free = np.isinf(bounds) & ~np.isnan(held) & ~np.isnan(wanted)
    agrees = exists & (is_nan | is_equal | is_free | (error <= bounds))
    flat = np.flatnonzero(~agrees)
    found = Mismatch(len(flat), got.size, got.shape, line.name, line.bits, label_of(name, layout), is_bounded=True)
    if not found:
        return found

    def element(position: int) -> Element:
        index = tuple(int(i) for i in np.unravel_index(position, got.shape))
        code = int(codes[position])
        owned = attribution(index, layout, owner)
        return Element(
            index, code, None, line.value(code), float(wanted[position]), None, owned, float(bounds[position])
        )

    with np.errstate(all="ignore"):
        multiple = np.where(np.isnan(error[flat]) | ~exists[flat], np.inf, error[flat] / bounds[flat])
    worst = int(flat[np.argmax(multiple)])
    patterns = tuple(place_patterns(flat, got.shape))
    listed = tuple(element(int(position)) for position in flat[:LISTED_ELEMENTS])
    return replace(found, first=listed[0], worst=element(worst), patterns=patterns, elements=listed)


SHOWN = 4  # moves listed one by one


def explained(
    got: NDArray[np.generic], want: NDArray[np.generic], candidates: Mapping[str, NDArray[np.generic]] | None = None
) -> tuple[str, ...]:
    """Return sentences on the mistakes that explain `got`, candidates first; () where the arrays are equal.

    `candidates` maps the name of a mistake to the array that a kernel with that mistake would write, in the shape of
    `want`; a candidate is reported where `got` equals it in every bit. For arrays of two dimensions, also reported:
    wrong rows (columns) that each hold another row of `want`, or their own elements in another order. Rows [1, 2] and
    [3, 4] written as [3, 4] and [3, 4] give "row 0 holds row 1".
    Raises RefsimError for arrays of different shapes or element sizes.
    explained(np.uint8([[3, 4], [3, 4]]), np.uint8([[1, 2], [3, 4]])) is ("row 0 holds row 1",).
    Source: defined here.
    """
    for name, array in (("got", got), *(candidates or {}).items()):
        if array.shape != want.shape:
            raise RefsimError("bad-shape", f"{name!r} has shape {array.shape}, want has shape {want.shape}")
        if array.dtype.itemsize != want.dtype.itemsize:
            raise RefsimError("bad-dtype", f"{name!r} is {array.dtype}, want is {want.dtype}")
    got_codes, want_codes = _flat_codes(got), _flat_codes(want)
    if (got_codes == want_codes).all():
        return ()
    fitting = [name for name, array in (candidates or {}).items() if (_flat_codes(array) == got_codes).all()]
    texts = [f"{name}: bit for bit what that gives" for name in fitting]
    if want.ndim == 2:
        axes = [("row", got_codes, want_codes), ("column", got_codes.T, want_codes.T)]
        moved = [text for axis in axes if (text := _moved(*axis))]
        texts += moved or [text for axis in axes if (text := _reordered(*axis))]
    return tuple(texts)


def _moved(name: str, got: Codes, want: Codes) -> str:
    """Return which line of `want` each wrong line along the first axis holds; "" where it is not exactly one line.

    A line that is wrong in one element may equal another line by chance.
    """
    lines = np.flatnonzero((got != want).any(axis=1))
    if ((got != want).sum(axis=1)[lines] == 1).any():
        return ""
    places: dict[bytes, list[int]] = {}
    for line, content in enumerate(want):
        places.setdefault(content.tobytes(), []).append(line)
    homes = [places.get(got[line].tobytes(), []) for line in lines]
    if _constant(got[lines]) or any(len(home) != 1 for home in homes):
        return ""
    return _moves(name, [(int(line), home[0]) for line, home in zip(lines, homes, strict=True)])


def _reordered(name: str, got: Codes, want: Codes) -> str:
    """Return a sentence where every wrong line holds its own elements in another order; else ""."""
    lines = np.flatnonzero((got != want).any(axis=1))
    same = (np.sort(got[lines]) == np.sort(want[lines])).all()
    return f"every wrong {name} holds its own elements in another order" if same and not _constant(got[lines]) else ""


def _constant(lines: Codes) -> bool:
    """Return whether some line repeats one element, so that it fits anywhere."""
    return bool((lines == lines[:, :1]).all(axis=1).any())


def _moves(name: str, moves: list[tuple[int, int]]) -> str:
    """Return (line, line that it holds) pairs as one sentence, as a rule `n ^ 4` or `n +1` where one holds for all."""
    masks, steps = {line ^ home for line, home in moves}, {home - line for line, home in moves}
    if len(moves) > 1 and len(masks) == 1:
        return f"every wrong {name} n holds {name} n ^ {masks.pop()}"
    if len(moves) > 1 and len(steps) == 1:
        return f"every wrong {name} n holds {name} n {steps.pop():+d}"
    shown = ", ".join(f"{name} {line} holds {name} {home}" for line, home in moves[:SHOWN])
    return shown + (f" and {len(moves) - SHOWN} more" if len(moves) > SHOWN else "")


def _flat_codes(array: NDArray[np.generic]) -> Codes:
    return np.ascontiguousarray(array).reshape(array.shape).view(f"u{array.dtype.itemsize}")


Array = NDArray[Any]
LISTED = 4  # groups, and elements of a group, that are named
ALIKE = 256  # most unmatched elements that are paired by the bytes they share


def in_best_order(
    got: Sequence[Array], want: Sequence[Array], axis: int, groups: NDArray[np.int64], formats: Sequence[str] = ()
) -> tuple[list[Array], list[str]]:
    """Return `want` with its elements in the order of `got` where they are equal, and what is missing or extra.

    The arrays share their axes up to `axis`, and their elements move together. `groups` are offsets along the axis;
    each index of the axes before it has these groups for itself. Elements are compared by their bytes. `formats` are
    the formats of the arrays' codes, "" for plain numbers.
    """
    shape = got[0].shape[: axis + 1]
    total, batch = int(np.prod(shape)), int(np.prod(shape[:-1]))
    here, there = (np.hstack([_bytes(each, total) for each in arrays]) for arrays in (got, want))
    group = np.repeat(np.arange(len(groups) - 1), np.diff(groups))
    group = (np.arange(batch)[:, None] * (len(groups) - 1) + group).reshape(-1)
    one, other = _keys(here, there, group)
    mine, right = np.argsort(one, kind="stable"), np.argsort(other, kind="stable")
    one, other = one[mine], other[right]
    at = np.searchsorted(other, one) + np.arange(total) - np.searchsorted(one, one)  # the n-th of equals to the n-th
    is_there = other[np.minimum(at, total - 1)] == one
    is_there &= at < total
    order, is_left = np.full(total, -1), np.ones(total, np.bool_)
    order[mine[is_there]] = right[at[is_there]]
    is_left[right[at[is_there]]] = False
    extra, missing = np.flatnonzero(order < 0), np.flatnonzero(is_left)
    order[extra] = _paired(here, there, extra, missing, group)
    lines, differing = [], np.unique(group[extra]).tolist()
    for place in differing[:LISTED]:
        row, one_of = divmod(place, len(groups) - 1)
        index = "".join(f"[{each}]" for each in np.unravel_index(row, shape[:-1]))
        lost = _listed(want, formats, missing[group[missing] == place], shape)
        found = _listed(got, formats, extra[group[extra] == place], shape)
        where = f"group {one_of}{index and ' of '}{index}, places {groups[one_of]}..{groups[one_of + 1] - 1}"
        lines.append(f"{where}: missing {lost}; extra {found}")
    lines += [f"{len(differing) - LISTED} more groups differ"] if len(differing) > LISTED else []
    return [np.ascontiguousarray(each).reshape(total, -1)[order].reshape(each.shape) for each in want], lines


def _bytes(array: Array, total: int) -> NDArray[np.uint8]:
    """Return the bytes of each element, shape (total, bytes)."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).reshape(total, -1)


def _keys(here: Array, there: Array, group: Array) -> list[Array]:
    """Return a number for each element of both arrays, equal for equal bytes in one group."""
    both = np.ascontiguousarray(np.vstack((here, there)))
    width = both.shape[1]
    whole = both.view(f"u{width}" if width in (1, 2, 4, 8) else f"V{width}").reshape(-1)
    _, number = np.unique(whole, return_inverse=True)
    return np.split(np.tile(group, 2) * (len(both) + 1) + number.reshape(-1), 2)


def _paired(here: Array, there: Array, extra: Array, missing: Array, group: Array) -> Array:
    """Return `missing` in the order of `extra`, within groups; a few elements are paired by the bytes they share."""
    if not 0 < len(extra) <= ALIKE:
        return missing
    score = (here[extra][:, None] == there[missing][None]).sum(2, dtype=np.int64)
    score[group[extra][:, None] != group[missing][None]] = -1
    found = np.empty_like(missing)
    for _ in extra:
        row, column = np.unravel_index(int(score.argmax()), score.shape)
        found[row] = missing[column]
        score[row, :], score[:, column] = -2, -2
    return found


def _listed(arrays: Sequence[Array], formats: Sequence[str], places: Array, shape: tuple[int, ...]) -> str:
    """Return elements as text: their numbers, decoded, as `(3, 0.5)` if arrays move together; rows by their index."""
    columns = []
    for array, format in zip(arrays, formats or [""] * len(arrays), strict=True):
        if array.shape == shape:
            numbers = array.reshape(-1)[places[:LISTED]]
            columns.append((decode(numbers, format) if format and numbers.dtype.kind in "ui" else numbers).tolist())
    texts = [str(row[0] if len(row) == 1 else row) for row in zip(*columns, strict=True)]
    texts = texts or [str([int(at) for at in np.unravel_index(place, shape)]) for place in places[:LISTED]]
    return ", ".join(texts) + (f" and {len(places) - LISTED} more" if len(places) > LISTED else "")
