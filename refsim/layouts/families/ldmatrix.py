"""Fragments of ldmatrix and stmatrix: the element of a 16-byte row that each lane's register receives or gives."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from refsim.errors import RefsimError
from refsim.layouts.families.core import Formula, Fragment, Integers, Row, grammar, group, refuse, within
from refsim.sources import PTX


def _straight(lane: Integers, value: Integers, per: int) -> tuple[Integers, Integers]:
    """Return places without .trans: register r of a lane is the q-th quarter of row g of matrix r.

    m8n8 b16, lane 5, value 3 is row 8 + 1, col 3.
    """
    return 8 * (value // per) + group(lane), within(lane) * per + value % per


def _transposed_b16(lane: Integers, value: Integers) -> tuple[Integers, Integers]:
    """Return places of b16 with .trans: register r, halfword h of a lane is row 2q + h, column g of matrix r."""
    return 8 * (value >> 1) + 2 * within(lane) + (value & 1), group(lane)


def _transposed_16_rows(lane: Integers, value: Integers) -> tuple[Integers, Integers]:
    """Return places of m16n16: register 2m + h, byte b of a lane is row 4q + b, byte g + 8h of matrix m."""
    return 16 * (value >> 3) + 4 * within(lane) + (value & 3), group(lane) + 8 * ((value >> 2) & 1)


def _transposed_bytes(lane: Integers, value: Integers) -> tuple[Integers, Integers]:
    """Return places of m16n8: register r, byte b of a lane is row 2q + b % 2, byte g + 8 * (b / 2) of matrix r."""
    return 8 * (value >> 2) + 2 * within(lane) + (value & 1), group(lane) + 8 * ((value >> 1) & 1)


@dataclass(frozen=True)
class Form:
    """Describe one shape and type: `rows` address lanes per matrix, each the start of a 16-byte row of `cols` elements.

    `memory_bits` is the width of an element in the row, packed from its start; in a register it fills `slot_bits`.
    """

    shape: str
    type: str
    trans: bool
    counts: tuple[int, ...]
    rows: int
    cols: int
    memory_bits: int
    slot_bits: int
    formula: Formula
    since: str

    def name(self, instruction: str, count: int) -> str:
        """Return the name of the fragment of `count` matrices: "ldmatrix.m8n8.x4.b16"."""
        return f"{instruction}.{self.shape}.x{count}.{self.type}" + ".trans" * self.trans


_B6, _B4 = "b8x16.b6x16_p32", "b8x16.b4x16_p64"
_HALVES, _BYTES = partial(_straight, per=2), partial(_straight, per=4)
LOADS = (
    Form("m8n8", "b16", False, (1, 2, 4), 8, 8, 16, 16, _HALVES, "sm_75"),
    Form("m8n8", "b16", True, (1, 2, 4), 8, 8, 16, 16, _transposed_b16, "sm_75"),
    Form("m8n16", _B6, False, (1, 2, 4), 8, 16, 6, 8, _BYTES, "sm_100a"),
    Form("m8n16", _B4, False, (1, 2, 4), 8, 16, 4, 8, _BYTES, "sm_100a"),
    Form("m16n16", "b8", True, (1, 2), 16, 16, 8, 8, _transposed_16_rows, "sm_100a"),
    Form("m16n16", _B6, True, (1, 2), 16, 16, 6, 8, _transposed_16_rows, "sm_100a"),
    Form("m16n16", _B4, True, (1, 2), 16, 16, 4, 8, _transposed_16_rows, "sm_100a"),
)
STORES = (
    Form("m8n8", "b16", False, (1, 2, 4), 8, 8, 16, 16, _HALVES, "sm_90"),
    Form("m8n8", "b16", True, (1, 2, 4), 8, 8, 16, 16, _transposed_b16, "sm_90"),
    Form("m16n8", "b8", True, (1, 2, 4), 8, 16, 8, 8, _transposed_bytes, "sm_100a"),
)
ROW_FORMS = {"ldmatrix": LOADS, "stmatrix": STORES}


def rows() -> Iterator[Row]:
    """Yield every name of the two families with the function that builds its fragment."""
    for instruction, forms in ROW_FORMS.items():
        for form in forms:
            for count in form.counts:
                yield form.name(instruction, count), partial(_fragment, instruction, form, count)


def _fragment(instruction: str, form: Form, count: int) -> Fragment:
    """Return the fragment of `count` matrices of a form."""
    elements = form.rows * form.cols * count
    return Fragment(
        form.name(instruction, count),
        (form.rows * count, form.cols),
        threads=32,
        values=elements // 32,
        formula=form.formula,
        source=PTX[instruction],
        since=form.since,
        per_register=32 // form.slot_bits,
        element_bits=min(form.memory_bits, form.slot_bits),
        memory_bits=form.memory_bits,
        summary=f"lane i gives the address of row i, {form.rows} rows a matrix; a row is 16 bytes",
    )


@grammar(
    r"(ldmatrix|stmatrix)\.(m[0-9]{1,2}n[0-9]{1,2})\.x([0-9])\.(b16|b8x16\.b6x16_p32|b8x16\.b4x16_p64|b8)(\.trans)?"
)
def refusal(name: str, match: re.Match[str]) -> RefsimError:
    """Return the reason that no instruction has the fragment."""
    instruction, shape, count, type, trans = match.groups()
    fitting = [form for form in ROW_FORMS[instruction] if (form.shape, form.type) == (shape, type)]
    if not fitting:
        have = ", ".join(dict.fromkeys(f"{form.shape} {form.type}" for form in ROW_FORMS[instruction]))
        return refuse(name, f"{instruction} has no {shape} of {type}", f"PTX ISA, {instruction}: {have}")
    if all(form.trans != bool(trans) for form in fitting):
        must = "needs .trans" if fitting[0].trans else "has no .trans"
        rule = "m16n16 and m16n8 need .trans, m8n8 may have it, m8n16 has none"
        return refuse(name, f"{instruction} {shape} of {type} {must}", f"PTX ISA, {instruction}: {rule}")
    counts = ", ".join(f"x{count}" for count in fitting[0].counts)
    return refuse(name, f"{instruction} {shape} has no x{count}", f"PTX ISA, {instruction}: {shape} takes {counts}")
