"""The report of a comparison: which elements differ, the first and the worst of them, as text and as JSON."""

import html
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from refsim.errors import counted
from refsim.render.cards import Card

LISTED_ELEMENTS = 16
"""How many differing elements a mismatch lists, in addition to the worst; `count` counts all of them."""


@dataclass(frozen=True)
class Element:
    """One differing element; `ulps` is got minus want along the format's ordered codes, None where one is NaN.

    Where a `bound` decides, the wanted value is exact and has no code: `want_bits` and `ulps` are None.
    """

    index: tuple[int, ...]
    got_bits: int
    want_bits: int | None
    got_value: float | int | None
    want_value: float | int | None
    ulps: int | None
    owner: str = ""
    bound: float | None = None

    @property
    def distance(self) -> float:
        """Return the error in ulp or in multiples of its bound; infinite where a NaN or a bound of 0 is involved."""
        if self.bound is None:
            return math.inf if self.ulps is None else abs(self.ulps)
        if self.got_value is None or self.want_value is None:
            return math.inf
        error = abs(self.got_value - self.want_value)
        return math.inf if math.isnan(error) or not self.bound else error / self.bound


@dataclass(frozen=True, repr=False)
class Mismatch(Card):
    """The difference of two arrays: falsy when there is none, `str()` is the report.

    `count` of `total` elements differ. `first` has the lowest flat index; `worst` has the largest distance in ulp, and
    NaN against a number counts as the largest. `elements` are the first LISTED_ELEMENTS in the order of the array.
    `suspects` are candidate causes: mistakes that would have written these bits. 3 of 8192 elements are 0.037 percent.
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
    suspects: tuple[str, ...] = field(default=())
    is_bounded: bool = False
    elements: tuple[Element, ...] = field(default=(), repr=False)

    def __bool__(self) -> bool:
        return self.count > 0

    @property
    def percent(self) -> float:
        """Return `count` in percent of `total`."""
        return 100.0 * self.count / self.total if self.total else 0.0

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def lines(self) -> list[str]:
        """Return the report, one fact a line."""
        s = "s" if self.total == 1 else ""
        if self.first is None or self.worst is None:
            verb = f"lie{s} within {'its bounds' if s else 'their bounds'}" if self.is_bounded else f"agree{s}"
            return [f"{counted(self.total, 'element')} of {self.format} {verb}{self._allowance()}"]
        percent = f"{self.percent:.2g}" if self.percent < 10 else f"{self.percent:.1f}"
        verb = f"lie{s} beyond {'its' if s else 'their'} bound" if self.is_bounded else f"differ{s}"
        lines = [
            f"{self.count} of {counted(self.total, 'element')} {verb} ({percent} %), {self.worst_text}{self._allowance()}"
        ]
        lines += self._element_lines("first", self.first)
        if self.worst.index != self.first.index:
            lines += self._element_lines("worst", self.worst)
        lines += [f"pattern {text}" for text in self.patterns]
        return lines + [f"likely cause: {text}" for text in self.suspects]

    @property
    def worst_text(self) -> str:
        """Return the distance of the worst element as text: `worst 241 ulp`."""
        if self.worst is None:
            return "none"
        if self.worst.bound is not None:
            far = self.worst.distance
            return f"worst {far:.3g} times its bound" if math.isfinite(far) else f"worst {_error(self.worst)}"
        return "worst involves NaN" if self.worst.ulps is None else f"worst {abs(self.worst.ulps)} ulp"

    def _allowance(self) -> str:
        parts = [f"within {self.within_ulps} ulp"] if self.within_ulps else []
        parts += ["any NaN payload"] if self.nan == "any-payload" else []
        return f" (allowed: {', '.join(parts)})" if parts else ""

    def spelled(self, element: Element) -> tuple[str, str, str]:
        """Return three texts: the element with its bits, the wanted value with its bits, the distance as `+2 ulp`."""
        got = spelled(element.got_bits, element.got_value, self.bits)
        if element.want_bits is None:
            return got, f"{number(element.want_value)} within {number(element.bound)}", _error(element)
        want = spelled(element.want_bits, element.want_value, self.bits)
        return got, want, "" if element.ulps is None else f"{element.ulps:+d} ulp"

    def _element_lines(self, label: str, element: Element) -> list[str]:
        place = f"{self.name}[{', '.join(map(str, element.index))}]"
        got, want, distance = self.spelled(element)
        line = f"{label:7} {place}   got {got}   want {want}" + (f"   {distance}" if distance else "")
        return [line, element.owner] if element.owner else [line]

    def _repr_html_(self) -> str:
        rows = "".join(f"<tr><td><code>{html.escape(line)}</code></td></tr>" for line in self.lines())
        return f'<table class="refsim-mismatch">{rows}</table>'

    def to_json(self) -> dict[str, Any]:
        """Return plain lists, numbers and strings; bit patterns are hex strings, NaN and infinities are strings."""
        fields = {key: getattr(self, key) for key in ("count", "total", "format", "bits", "name", "nan", "within_ulps")}
        return fields | {
            "shape": list(self.shape),
            "percent": self.percent,
            "first": _element_to_json(self.first),
            "worst": _element_to_json(self.worst),
            "patterns": list(self.patterns),
            "suspects": list(self.suspects),
            **({"is_bounded": True} if self.is_bounded else {}),
            "elements": [_element_to_json(element) for element in self.elements],
            "elements_left_out": self.count - len(self.elements),
        }

    @staticmethod
    def from_json(record: Mapping[str, Any]) -> "Mismatch":
        """Return the mismatch that `to_json` wrote."""
        return Mismatch(
            **{key: record[key] for key in ("count", "total", "format", "bits", "name", "nan", "within_ulps")},
            shape=tuple(record["shape"]),
            first=_element_from_json(record["first"]),
            worst=_element_from_json(record["worst"]),
            patterns=tuple(record["patterns"]),
            suspects=tuple(record.get("suspects", ())),
            is_bounded=bool(record.get("is_bounded", False)),
            elements=tuple(element for each in record.get("elements", ()) if (element := _element_from_json(each))),
        )

    def _repr_summary(self) -> str:
        return self.lines()[0]


def _error(element: Element) -> str:
    """Return the error of an element against its bound: `off by +0.015, 7.6 times its bound`."""
    if element.got_value is None or element.want_value is None:
        return "no code of the format"
    error = element.got_value - element.want_value
    if math.isnan(error):
        return "involves NaN" if math.isnan(element.got_value) or math.isnan(element.want_value) else "infinities"
    times = f", {element.distance:.3g} times its bound" if math.isfinite(element.distance) else ""
    return f"off by {error:+.3g}{times}"


def number(value: float | int | None) -> str:
    """Return a value as text; "(no code)" for None."""
    return "(no code)" if value is None else repr(value)


def spelled(code: int, value: float | int | None, bits: int) -> str:
    """Return a code in hex and its value: `0x7e 448.0`."""
    return f"0x{code:0{(bits + 3) // 4}x} {number(value)}"


def _element_to_json(element: Element | None) -> dict[str, Any] | None:
    if element is None:
        return None
    want = None if element.want_bits is None else hex(element.want_bits)
    spelled = {"got_bits": hex(element.got_bits), "want_bits": want}
    values = {"got_value": _json_number(element.got_value), "want_value": _json_number(element.want_value)}
    bound = {} if element.bound is None else {"bound": _json_number(element.bound)}
    return {"index": list(element.index), **spelled, **values, "ulps": element.ulps, "owner": element.owner, **bound}


def _element_from_json(record: Mapping[str, Any] | None) -> Element | None:
    if record is None:
        return None
    got, want, bound = (_from_json_number(record.get(key)) for key in ("got_value", "want_value", "bound"))
    codes = [None if record[key] is None else int(record[key], 16) for key in ("got_bits", "want_bits")]
    return Element(tuple(record["index"]), codes[0] or 0, codes[1], got, want, record["ulps"], record["owner"], bound)


def _from_json_number(value: Any) -> Any:
    return float(value) if isinstance(value, str) else value


def _json_number(value: float | int | None) -> float | int | str | None:
    return repr(value) if isinstance(value, float) and not math.isfinite(value) else value
