"""The bit diff: which elements differ, by how many ulp, in which pattern, and who wrote or holds them."""

import html
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from refsim.conversions import decode
from refsim.errors import RefsimError, unknown
from refsim.formats import FORMATS, Format, format_named
from refsim.layouts.places import spoken

Codes = NDArray[np.unsignedinteger]
Owner = Callable[..., "str | Mapping[str, object] | None"]
NAN_POLICIES = ("bitwise", "any-payload")
CHANCE = 0.005  # a pattern is named only where random positions would show it more rarely than this


class Layout(Protocol):
    """What attribution needs of a fragment: its name, its shape, and who holds an element."""

    @property
    def name(self) -> str: ...
    @property
    def shape(self) -> tuple[int, int]: ...
    def holder(self, row: int, col: int) -> tuple[Any, Any]: ...


@dataclass(frozen=True)
class Element:
    """One differing element; `ulps` is got minus want along the format's ordered codes, None where one is NaN."""

    index: tuple[int, ...]
    got_bits: int
    want_bits: int
    got_value: float | int | None
    want_value: float | int | None
    ulps: int | None
    owner: str = ""


@dataclass(frozen=True)
class Mismatch:
    """The difference of two arrays: falsy when there is none, `str()` is the report.

    `count` of `total` elements differ. `first` is the lowest flat index, `worst` the largest ulp distance (NaN against
    a number is worse than any). 3 of 8192 elements are 0.037 percent.
    """

    count: int
    total: int
    shape: tuple[int, ...]
    format: str
    bits: int
    name: str = ""
    nan: str = "bitwise"
    within_ulps: int = 0
    first: Element | None = None
    worst: Element | None = None
    patterns: tuple[str, ...] = field(default=())

    def __bool__(self) -> bool:
        return self.count > 0

    @property
    def percent(self) -> float:
        return 100.0 * self.count / self.total if self.total else 0.0

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def lines(self) -> list[str]:
        """The report, one fact a line."""
        if self.first is None or self.worst is None:
            return [f"{self.total} elements of {self.format} agree{self._allowance()}"]
        percent = f"{self.percent:.2g}" if self.percent < 10 else f"{self.percent:.1f}"
        worst = "worst involves NaN" if self.worst.ulps is None else f"worst {abs(self.worst.ulps)} ulp"
        lines = [f"{self.count} of {self.total} elements differ ({percent} %), {worst}{self._allowance()}"]
        lines += self._element_lines("first", self.first)
        if self.worst.index != self.first.index:
            lines += self._element_lines("worst", self.worst)
        return lines + [f"pattern {text}" for text in self.patterns]

    def _allowance(self) -> str:
        parts = [f"within {self.within_ulps} ulp"] if self.within_ulps else []
        parts += ["any NaN payload"] if self.nan == "any-payload" else []
        return f" (allowed: {', '.join(parts)})" if parts else ""

    def _element_lines(self, label: str, element: Element) -> list[str]:
        place = f"{self.name}[{', '.join(map(str, element.index))}]"
        got = _spelled(element.got_bits, element.got_value, self.bits)
        want = _spelled(element.want_bits, element.want_value, self.bits)
        distance = "" if element.ulps is None else f"   {element.ulps:+d} ulp"
        line = f"{label:7} {place}   got {got}   want {want}{distance}"
        return [line, element.owner] if element.owner else [line]

    def _repr_html_(self) -> str:
        rows = "".join(f"<tr><td><code>{html.escape(line)}</code></td></tr>" for line in self.lines())
        return f'<table class="refsim-mismatch">{rows}</table>'

    def to_json(self) -> dict[str, Any]:
        """Plain lists, numbers and strings; bit patterns are hex strings, NaN and infinities are words."""
        fields = {key: getattr(self, key) for key in ("count", "total", "format", "bits", "name", "nan", "within_ulps")}
        return fields | {
            "shape": list(self.shape),
            "percent": self.percent,
            "first": _element_to_json(self.first),
            "worst": _element_to_json(self.worst),
            "patterns": list(self.patterns),
        }

    @staticmethod
    def from_json(record: Mapping[str, Any]) -> "Mismatch":
        """The mismatch that `to_json` wrote."""
        return Mismatch(
            **{key: record[key] for key in ("count", "total", "format", "bits", "name", "nan", "within_ulps")},
            shape=tuple(record["shape"]),
            first=_element_from_json(record["first"]),
            worst=_element_from_json(record["worst"]),
            patterns=tuple(record["patterns"]),
        )


def bits(
    got: NDArray[Any],
    want: NDArray[Any],
    format: str | Format | None = None,
    layout: Layout | None = None,
    owner: Owner | None = None,
    *,
    nan: str = "bitwise",
    within_ulps: int = 0,
    name: str = "",
) -> Mismatch:
    """Compares two arrays bit for bit: e4m3 0x7e against 0x7f is one difference, NaN against 448.

    `got`, `want`: equal shapes; codes (unsigned), or floats that are viewed as codes. `format` names the codes when
    the dtypes do not. `layout` (2-D) says which lane holds an element, `owner(*index)` who wrote it: a text, or a dict
    such as {"block": 3, "thread": 17, "address": 0x7f00}. `nan="any-payload"` lets any NaN stand for any other.
    `within_ulps` accepts that distance along the format's ordered codes; a NaN never stands for a number.
    Raises RefsimError for shapes, dtypes or formats that do not match.
    """
    got, want = _array("got", got), _array("want", want)
    if got.shape != want.shape:
        raise RefsimError("shape-mismatch", f"got has shape {got.shape}, want has shape {want.shape}", where=name)
    if nan not in NAN_POLICIES:
        raise unknown("NaN policy", nan, list(NAN_POLICIES))
    if isinstance(within_ulps, bool) or not isinstance(within_ulps, int) or within_ulps < 0:
        raise RefsimError("bad-bound", f"within_ulps must be an integer from 0, not {within_ulps!r}")
    if layout is not None and got.shape != tuple(layout.shape):
        raise RefsimError("shape-mismatch", f"the array has shape {got.shape}, layout {layout.name} {layout.shape}")
    line = _code_line(got.dtype, want.dtype, format)
    got_codes, want_codes = _codes(got), _codes(want)
    flat = np.flatnonzero(got_codes != want_codes)
    steps, unordered = _distances(got_codes[flat], want_codes[flat], line)
    if nan == "any-payload" or within_ulps:
        same = line.is_nan(got_codes[flat]) & line.is_nan(want_codes[flat]) & (nan == "any-payload")
        keep = ~same & (unordered | (steps > np.uint64(within_ulps)) | (within_ulps == 0))
        flat, steps, unordered = flat[keep], steps[keep], unordered[keep]
    found = Mismatch(len(flat), got.size, got.shape, line.name, line.bits, _label(name, layout), nan, within_ulps)
    if not found:
        return found
    worst = int(np.argmax(np.where(unordered, np.uint64(2**64 - 1), steps)))

    def element(position: int) -> Element:
        index = tuple(int(i) for i in np.unravel_index(flat[position], got.shape))
        pair = (got_codes[flat[position]], want_codes[flat[position]])
        sign = 1 if line.order(pair[0]) >= line.order(pair[1]) else -1
        return Element(
            index, int(pair[0]), int(pair[1]), line.value(int(pair[0])), line.value(int(pair[1])),
            None if unordered[position] else sign * int(steps[position]), _attribution(index, layout, owner),
        )  # fmt: skip

    patterns = _place_patterns(flat, got.shape) + _value_patterns(got_codes[flat], want_codes[flat], line)
    return replace(found, first=element(0), worst=element(worst), patterns=tuple(patterns))


# The code line: every format is a sequence of codes in order of value, and an ulp is one step along it.


@dataclass(frozen=True)
class _CodeLine:
    name: str
    bits: int
    order: Callable[[Any], Any]  # codes -> int64 positions
    values: Callable[[Codes], NDArray[Any]]  # codes -> float64, or integers
    limit: int
    integer: bool = False

    def value(self, code: int) -> float | int | None:
        if code >= self.limit:
            return None
        value = self.values(np.array([code], dtype=f"u{_container_bits(self.bits) // 8}"))[0]
        return value.item()  # type: ignore[no-any-return]

    def is_nan(self, codes: Codes) -> NDArray[np.bool_]:
        found = np.zeros(codes.shape, dtype=np.bool_)
        if self.integer:
            return found
        legal = codes < self.limit if self.limit <= np.iinfo(codes.dtype).max else np.ones(codes.shape, np.bool_)
        found[legal] = np.isnan(self.values(codes[legal]))
        return found


def _container_bits(width: int) -> int:
    return next(size for size in (8, 16, 32, 64) if size >= width)


def _format_line(row: Format) -> _CodeLine:
    width = row.bits + row.padding_bits

    def order(codes: Any) -> Any:
        code = np.asarray(codes).astype(np.int64) >> row.padding_bits
        sign = row.sign_mask >> row.padding_bits
        if row.twos_complement:
            return np.where(code & sign, code - 2 * sign, code)
        return np.where(code & sign, -(code & ~sign), code) if sign else code

    return _CodeLine(row.name, width, order, lambda codes: decode(codes, row), row.code_limit)


def _integer_line(dtype: np.dtype[Any]) -> _CodeLine:
    width, signed = 8 * dtype.itemsize, dtype.kind == "i"

    def order(codes: Any) -> Any:
        codes = np.asarray(codes)
        if signed:
            return codes.view(f"i{dtype.itemsize}").astype(np.int64)
        return (codes.astype(np.uint64) ^ np.uint64(2**63)).view(np.int64)

    return _CodeLine(str(dtype), width, order, lambda codes: codes.view(dtype), 1 << width, integer=True)


def _double_line() -> _CodeLine:
    def order(codes: Any) -> Any:
        magnitude = (np.asarray(codes) & np.uint64(2**63 - 1)).astype(np.int64)
        return np.where(np.asarray(codes) >> np.uint64(63), -magnitude, magnitude)

    return _CodeLine("float64", 64, order, lambda codes: codes.view(np.float64), 1 << 64)


def _code_line(got: np.dtype[Any], want: np.dtype[Any], format: str | Format | None) -> _CodeLine:
    given = None if format is None else format_named(format)
    if got.itemsize != want.itemsize:
        raise RefsimError("dtype-mismatch", f"got is {got}, want is {want}: one element has other bits")
    rows = {row.name: row for row in (_format_of(got), _format_of(want), given) if row is not None}
    if len(rows) > 1:
        raise RefsimError("format-mismatch", f"got is {got}, want is {want}, format is {given}: they do not agree")
    doubles = [dtype for dtype in (got, want) if dtype == np.float64]
    if doubles and not rows:
        return _double_line()
    if not rows:
        return _integer_line(got if got.kind == "i" else want)
    row = next(iter(rows.values()))
    if row.code_dtype.itemsize != got.itemsize or doubles:
        raise RefsimError("dtype-mismatch", f"codes of {row} are {row.code_dtype}, not {got}")
    return _format_line(row)


def _format_of(dtype: np.dtype[Any]) -> Format | None:
    if dtype.kind in "biu" or dtype == np.float64:
        return None
    for row in FORMATS:
        if str(dtype) == row.name or str(dtype) in row.aliases:
            return row
    raise RefsimError("unreadable-dtype", f"no format has the dtype {dtype}", help="pass unsigned codes and format=")


def _array(label: str, array: object) -> NDArray[Any]:
    if not isinstance(array, np.ndarray):
        raise RefsimError("not-an-array", f"{label} must be a NumPy array, not {type(array).__name__}")
    return array


def _codes(array: NDArray[Any]) -> Codes:
    return np.ascontiguousarray(array).reshape(-1).view(f"u{array.dtype.itemsize}")


def _distances(got: Codes, want: Codes, line: _CodeLine) -> tuple[NDArray[np.uint64], NDArray[np.bool_]]:
    """Steps between two codes, and where there is no distance because just one is NaN or not a code."""
    here, there = line.order(got), line.order(want)
    # The distance of two int64 can need 64 bits: modular subtraction of the larger minus the smaller is exact.
    low, high = np.minimum(here, there).view(np.uint64), np.maximum(here, there).view(np.uint64)
    return high - low, line.is_nan(got) | line.is_nan(want)


# Patterns: where the differences stand, in words.


def _place_patterns(flat: NDArray[np.intp], shape: tuple[int, ...]) -> list[str]:
    total = math.prod(shape)
    if len(flat) == total:
        return ["every element differs"] if total > 1 else []
    if len(flat) == 1:
        ends = {0: "only the first element", total - 1: "only the last element"}
        return [ends[int(flat[0])]] if int(flat[0]) in ends else []
    names = {1: ["index"], 2: ["row", "col"]}.get(len(shape), [f"axis {axis}" for axis in range(len(shape))])
    axes = zip(names, np.unravel_index(flat, shape), shape, strict=True)
    parts = [text for axis in axes for text in _axis_patterns(*axis)]
    return [f"all differences have {' and '.join(parts)}"] if parts else []


def _axis_patterns(name: str, coordinates: NDArray[np.intp], extent: int) -> list[str]:
    present = np.zeros(extent, np.bool_)
    present[coordinates] = True
    distinct = np.flatnonzero(present)
    if len(distinct) == extent:
        return []
    if len(distinct) == 1:
        return [f"{name} = {distinct[0]}"]
    span = _span_pattern(name, distinct, extent)
    residues = _residue_pattern(name, distinct, extent)
    return [text for text in (residues, span) if text]


def _residue_pattern(name: str, distinct: NDArray[np.intp], extent: int) -> str:
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


def _span_pattern(name: str, distinct: NDArray[np.intp], extent: int) -> str:
    low, high = int(distinct[0]), int(distinct[-1])
    span = high - low + 1
    filled = span == len(distinct)
    if len(distinct) * math.log(span / extent) > math.log(CHANCE) and not (filled and span <= extent // 2):
        return ""
    block = next((size for size in (8, 16, 32, 64, 128, 256) if low // size == high // size), 0)
    if filled:
        place = "the tail, " if high == extent - 1 else ""
        return f"{name} in {low}..{high} ({place}one contiguous range)"
    if high == extent - 1:
        return f"{name} >= {low} (of {extent})"
    return f"{name} // {block} = {low // block}" if block and block < 2 * span else f"{name} in {low}..{high}"


def _value_patterns(got: Codes, want: Codes, line: _CodeLine) -> list[str]:
    if len(got) < 2:
        return []
    digits = (line.bits + 3) // 4
    if (got == got[0]).all():
        return [f"every wrong element is 0x{int(got[0]):0{digits}x} {_number(line.value(int(got[0])))}".rstrip()]
    flipped = got ^ want
    if (flipped == flipped[0]).all():
        return [f"every difference is the bit mask 0x{int(flipped[0]):0{digits}x}"]
    steps = line.order(got) - line.order(want)
    if (steps == steps[0]).all():
        return [f"every difference is {int(steps[0]):+d} ulp"]
    if len(got) >= 8 and ((steps > 0).all() or (steps < 0).all()):
        return [f"got is {'above' if steps[0] > 0 else 'below'} want in every difference"]
    return []


# Words and JSON.


def _label(name: str, layout: Layout | None) -> str:
    return name if name or layout is None else layout.name.rpartition(".")[2].upper()


def _attribution(index: tuple[int, ...], layout: Layout | None, owner: Owner | None) -> str:
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


def _number(value: float | int | None) -> str:
    return "(no code)" if value is None else repr(value)


def _spelled(code: int, value: float | int | None, bits: int) -> str:
    return f"0x{code:0{(bits + 3) // 4}x} {_number(value)}"


def _element_to_json(element: Element | None) -> dict[str, Any] | None:
    if element is None:
        return None
    spelled = {"got_bits": hex(element.got_bits), "want_bits": hex(element.want_bits)}
    values = {"got_value": _json_number(element.got_value), "want_value": _json_number(element.want_value)}
    return {"index": list(element.index), **spelled, **values, "ulps": element.ulps, "owner": element.owner}


def _element_from_json(record: Mapping[str, Any] | None) -> Element | None:
    if record is None:
        return None
    values = [float(v) if isinstance(v, str) else v for v in (record["got_value"], record["want_value"])]
    codes = [int(record[key], 16) for key in ("got_bits", "want_bits")]
    return Element(tuple(record["index"]), codes[0], codes[1], values[0], values[1], record["ulps"], record["owner"])


def _json_number(value: float | int | None) -> float | int | str | None:
    return repr(value) if isinstance(value, float) and not math.isfinite(value) else value
