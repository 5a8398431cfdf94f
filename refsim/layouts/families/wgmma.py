"""Fragments of wgmma: the accumulator of every legal N, and A fed from registers."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from refsim.errors import RefsimError
from refsim.formats import element_named
from refsim.layouts.families.core import Fragment, Integers, Row, grammar, group, in_registers, refuse, within
from refsim.layouts.families.mma import operand_a
from refsim.sources import PTX


@dataclass(frozen=True)
class Product:
    """Describe the element types that share one K, the accumulators they offer (default first) and the legal N."""

    k: int
    types: tuple[str, ...]
    accumulators: tuple[str, ...]
    columns: tuple[int, ...]

    @property
    def spoken_columns(self) -> str:
        """Return the legal N as text."""
        return f"8 to 256 in steps of {'8' if self.columns == EVERY_EIGHT else '16, and 8 and 24'}"


EVERY_EIGHT = tuple(range(8, 257, 8))
EIGHT_AND_SIXTEENS = (8, 24, *range(16, 257, 16))
PRODUCTS = (
    Product(16, ("f16",), ("f32", "f16"), EVERY_EIGHT),
    Product(16, ("bf16",), ("f32",), EVERY_EIGHT),
    Product(8, ("tf32",), ("f32",), EVERY_EIGHT),
    Product(32, ("e4m3", "e5m2"), ("f32", "f16"), EVERY_EIGHT),
    Product(32, ("s8", "u8"), ("s32",), tuple(sorted(EIGHT_AND_SIXTEENS))),
    Product(256, ("b1",), ("s32",), tuple(sorted(EIGHT_AND_SIXTEENS))),
)


def rows() -> Iterator[Row]:
    """Yield every name of the family with the function that builds its fragment."""
    for row in PRODUCTS:
        for type in row.types:
            for n in row.columns:
                stem = f"wgmma.m64n{n}k{row.k}.{type}"
                yield f"{stem}.a", partial(_operand_a, f"{stem}.a", row.k, type)
                for accumulator in row.accumulators:
                    name = f"{stem}.d" if accumulator == row.accumulators[0] else f"{stem}.d.{accumulator}"
                    yield name, partial(_accumulator, name, n, accumulator)


def _operand_a(name: str, k: int, type: str) -> Fragment:
    """Return the fragment of A in registers."""
    formula = partial(_rows_of_a, per=32 // element_named(type).code_bits)
    summary = "warp w owns rows 16w to 16w + 15, in which A lies as in mma.sync"
    source = PTX["wgmma, register fragment A"]
    return in_registers(name, (64, k), type, formula, source, "sm_90a", summary, threads=128)


def _rows_of_a(thread: Integers, value: Integers, per: int) -> tuple[Integers, Integers]:
    row, k = operand_a(thread, value, per)
    return 16 * (thread >> 5) + row, k


def _accumulator(name: str, n: int, type: str) -> Fragment:
    """Return the fragment of D with N columns of `type`."""
    summary = "warp w owns rows 16w to 16w + 15, a quad of lanes shares a row"
    source = PTX["wgmma, register fragment D"]
    return in_registers(name, (64, n), type, _rows_of_d, source, "sm_90a", summary, threads=128)


def _rows_of_d(thread: Integers, value: Integers) -> tuple[Integers, Integers]:
    """Return places of D: thread 37 (warp 1, lane 5), value 20 is row 16 + 1, column 8 * 5 + 2."""
    row = 16 * (thread >> 5) + group(thread) + 8 * ((value >> 1) & 1)
    return row, 8 * (value >> 2) + 2 * within(thread) + (value & 1)


@grammar(r"wgmma\.m([0-9]{1,6})n([0-9]{1,6})k([0-9]{1,6})\.([a-z]+[0-9a-z]*)\.([abcd])(?:\.(f16|f32|s32))?")
def refusal(name: str, match: re.Match[str]) -> RefsimError:
    """Return the reason that no instruction has the fragment."""
    m, n, k, type, operand, accumulator = match.groups()
    row = next((row for row in PRODUCTS if type in row.types), None)
    if row is None:
        have = ", ".join(type for row in PRODUCTS for type in row.types)
        return refuse(name, f"wgmma does not multiply {type}", f"PTX ISA, wgmma.mma_async: types are {have}")
    if (int(m), int(k)) != (64, row.k):
        return refuse(
            name, f"wgmma of {type} has no shape m{m}n{n}k{k}", f"PTX ISA, wgmma.mma_async: {type} is m64nNk{row.k}"
        )
    if int(n) not in row.columns:
        rule = f"PTX ISA, wgmma.mma_async: N is {row.spoken_columns}"
        return refuse(name, f"wgmma of {type} has no N = {n}", rule)
    if operand in "bc":
        what = "reads B from shared memory only" if operand == "b" else "has no C: it accumulates into D"
        return refuse(name, f"wgmma {what}", "PTX ISA, wgmma.mma_async: register operands are A and D")
    have = ", ".join(row.accumulators)
    return refuse(
        name,
        f"{operand} of wgmma {type} takes no suffix .{accumulator}",
        f"PTX ISA, wgmma.mma_async: accumulators of {type} are {have}",
        "the first takes no suffix",
    )
