"""The report of a comparison: which elements differ, the first and the worst of them, as text and as JSON."""

import html
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from refsim.render.cards import Card


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


@dataclass(frozen=True, repr=False)
class Mismatch(Card):
    """The difference of two arrays: falsy when there is none, `str()` is the report.

    `count` of `total` elements differ. `first` is the lowest flat index, `worst` the largest ulp distance (NaN against
    a number is worse than any). `suspects` are the mistakes that would have written this. 3 of 8192 elements are 0.037
    percent.
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
        lines += [f"pattern {text}" for text in self.patterns]
        return lines + [f"suspect {text}" for text in self.suspects]

    def _allowance(self) -> str:
        parts = [f"within {self.within_ulps} ulp"] if self.within_ulps else []
        parts += ["any NaN payload"] if self.nan == "any-payload" else []
        return f" (allowed: {', '.join(parts)})" if parts else ""

    def _element_lines(self, label: str, element: Element) -> list[str]:
        place = f"{self.name}[{', '.join(map(str, element.index))}]"
        got = spelled(element.got_bits, element.got_value, self.bits)
        want = spelled(element.want_bits, element.want_value, self.bits)
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
            "suspects": list(self.suspects),
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
            suspects=tuple(record.get("suspects", ())),
        )

    def _line(self) -> str:
        return self.lines()[0]


def number(value: float | int | None) -> str:
    return "(no code)" if value is None else repr(value)


def spelled(code: int, value: float | int | None, bits: int) -> str:
    return f"0x{code:0{(bits + 3) // 4}x} {number(value)}"


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
