"""Descriptors as data for the page: fields, and their rules as tables of every possible answer."""

from collections.abc import Mapping
from typing import Any

from refsim.layouts.descriptors import DESCRIPTORS, Descriptor, Field, matrices
from refsim.layouts.descriptors.fields import Fields, Rule, Value
from refsim.layouts.swizzles import swizzle

_MOST_ANSWERS = 6  # bits of the widest field whose answers are written out


class _Asked(dict[str, Value]):
    """Some fields of a descriptor; a lookup of a missing field raises its name."""

    def __missing__(self, name: str) -> Value:
        raise _WantedError(name)


class _WantedError(Exception):
    """A rule reads a field that has no value yet."""


def descriptor_rows() -> list[dict[str, Any]]:
    """Return the descriptors with a published bit layout; the driver's tensor map has none.

    wgmma-smem has 64 bits and five fields; its rule answers by swizzle, then by base_offset.
    """
    return [_row(each) for each in DESCRIPTORS if isinstance(each, Descriptor)]


def _row(each: Descriptor) -> dict[str, Any]:
    covered = sum((1 << field.width) - 1 << field.low for field in each.fields)
    return {
        "kind": each.kind,
        "bits": each.bits,
        "summary": each.summary,
        "fields": [_field_row(field) for field in sorted(each.fields, key=lambda field: field.low)],
        "order": [field.name for field in each.fields],
        "reserved": f"{(1 << each.bits) - 1 & ~covered:#x}",
        "rules": [rule_table(rule, each) for rule in each.rules],
        "patterns": _patterns(each) if each in matrices.MATRIX_DESCRIPTORS else {},
        "example": f"{_example(each):#0{each.bits // 4 + 2}x}",
        "evidence": each.evidence.what,
        "source": str(each.source),
    }


def _field_row(field: Field) -> dict[str, Any]:
    few = field.width <= _MOST_ANSWERS
    return {
        "name": field.name,
        "low": field.low,
        "width": field.width,
        "bits": field.bits,
        "meaning": field.meaning,
        "unit": field.unit,
        "values": [field.value(stored) for stored in range(1 << field.width)] if few else None,
        "complaints": [field.complaint(stored) for stored in range(1 << field.width)] if few else None,
    }


def remark_words() -> dict[str, Any]:
    """Return templates of remarks about matrices in shared memory, and the unit of a base offset."""
    return {
        "at": matrices.PATTERN_AT,
        "moved": matrices.PATTERN_MOVED,
        "unmoved": matrices.PATTERN_UNMOVED,
        "near": matrices.NEAR_GROUPS,
        "offsetBytes": matrices.BASE_OFFSET_BYTES,
    }


def _patterns(each: Descriptor) -> dict[str, tuple[int, int]]:
    """Return (bytes after which the pattern repeats, bytes of a group of rows) for each swizzle of a descriptor."""
    field = next(field for field in each.fields if field.name == "swizzle")
    names = [str(name) for _, name in field.names]
    return {name: (swizzle(name).repeat_bytes, matrices.group_bytes(name)) for name in names}


def rule_table(rule: Rule, each: Descriptor, chosen: Mapping[str, Value] | None = None) -> Any:
    """Return the answer of a rule: text, None, or {"field": name, "cases": an answer for each stored value}.

    The rule is called with more and more of the fields that it reads. Fields that make no difference are dropped.
    """
    fields: Fields = _Asked(chosen or {})
    try:
        return rule(fields)
    except _WantedError as wanted:
        field = next(field for field in each.fields if field.name == wanted.args[0])
        values = [field.value(stored) for stored in range(1 << field.width)]
        cases = [rule_table(rule, each, {**fields, field.name: value}) for value in values]
        return cases[0] if all(case == cases[0] for case in cases) else {"field": field.name, "cases": cases}


def _example(each: Descriptor) -> int:
    """Return a legal descriptor to begin with: a field without a default gets the middle of its legal values."""
    chosen: Fields = {}
    for field in each.fields:
        if field.default is None:
            legal = [stored for stored in range(1 << min(field.width, 8)) if field.complaint(stored) is None]
            chosen[field.name] = field.value(legal[len(legal) // 2])
    return each.encode(**chosen)
