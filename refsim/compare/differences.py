"""Compare two arrays bit for bit: the elements that differ, and the thread that holds or wrote each."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Literal, Protocol, get_args

import numpy as np
from numpy.typing import NDArray

from refsim.compare.code_line import code_line, codes_of, distances
from refsim.compare.mismatch import LISTED_ELEMENTS, Element, Mismatch
from refsim.compare.patterns import place_patterns, value_patterns
from refsim.errors import RefsimError, check_named
from refsim.formats import ElementType
from refsim.integers import is_whole
from refsim.layouts.holders import spoken
from refsim.typed_arrays import native

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
        return Element(
            index,
            int(pair[0]),
            int(pair[1]),
            line.value(int(pair[0])),
            line.value(int(pair[1])),
            None if unordered[position] else sign * int(steps[position]),
            attribution(index, layout, owner),
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
