"""Fragments of AMD MFMA: CDNA3 (gfx942) and CDNA4 (gfx950), the block-scaled f8f6f4 included."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import product

from refsim.errors import RefsimError
from refsim.formats import E4M3FNUZ, E5M2FNUZ, F64, S8, TF32, ElementType, element_named
from refsim.layouts.families.core import Fragment, Integers, Row, grammar, in_registers, only, refuse
from refsim.sources import CDNA, COMPOSABLE_KERNEL, TRITON

LANES = 64


@dataclass(frozen=True)
class MfmaShape:
    """Describe one MN x MN x K: types in AMD's spelling (fp8 is FNUZ on gfx942, OCP on gfx950) and the first chip.

    64 lanes are G = 64 / MN groups; each group holds another stretch of K.
    """

    mn: int
    k: int
    types: tuple[str, ...]
    since: str

    def __str__(self) -> str:
        return f"{self.mn}x{self.mn}x{self.k}"

    @property
    def groups(self) -> int:
        """Return the number of lane groups, each with another stretch of K."""
        return LANES // self.mn


MFMA_SHAPES = (
    MfmaShape(32, 2, ("f32",), "gfx908"),
    MfmaShape(16, 4, ("f32",), "gfx908"),
    MfmaShape(32, 4, ("xf32",), "gfx942"),
    MfmaShape(16, 8, ("xf32",), "gfx942"),
    MfmaShape(16, 4, ("f64",), "gfx90a"),
    MfmaShape(32, 8, ("f16",), "gfx908"),
    MfmaShape(16, 16, ("f16",), "gfx908"),
    MfmaShape(32, 8, ("bf16",), "gfx90a"),
    MfmaShape(16, 16, ("bf16",), "gfx90a"),
    MfmaShape(32, 16, ("i8", "fp8", "bf8"), "gfx942"),
    MfmaShape(16, 32, ("i8", "fp8", "bf8"), "gfx942"),
    MfmaShape(32, 16, ("f16", "bf16"), "gfx950"),
    MfmaShape(16, 32, ("f16", "bf16"), "gfx950"),
    MfmaShape(32, 32, ("i8",), "gfx950"),
    MfmaShape(16, 64, ("i8",), "gfx950"),
    MfmaShape(32, 64, ("f8f6f4",), "gfx950"),
    MfmaShape(16, 128, ("f8f6f4",), "gfx950"),
)
AMD_NAMES: dict[str, ElementType] = {
    "xf32": TF32,
    "i8": S8,
    "fp8": E4M3FNUZ,
    "bf8": E5M2FNUZ,
}  # other types have refsim's names
# Width of an f8f6f4 element -> the consecutive k that a lane holds before it skips to the next stretch
K_CHUNK = {8: 16, 6: 32, 4: 32}
WIDTHS = {"fp8": 8, "fp6": 6, "fp4": 4}


def rows() -> Iterator[Row]:
    """Yield every name of the family with the function that builds its fragment."""
    for shape in MFMA_SHAPES:
        for type in shape.types:
            stem = f"mfma.{shape}.{type}"
            for operand in "ab":
                for width in WIDTHS if type == "f8f6f4" else ("",):
                    name = f"{stem}.{operand}" + (f".{width}" if width not in ("", "fp8") else "")
                    yield (
                        name,
                        partial(_operand, name, shape, operand, WIDTHS[width] if width else _element(type).code_bits),
                    )
            for operand in "cd":
                yield f"{stem}.{operand}", partial(_accumulator, f"{stem}.{operand}", shape, type)
            if type == "f8f6f4":
                for operand, byte in product(("sfa", "sfb"), range(4)):
                    name = f"{stem}.{operand}" + (f".byte{byte}" if byte else "")
                    yield name, partial(_scales, name, shape, operand, byte)


def _element(type: str) -> ElementType:
    return AMD_NAMES.get(type) or element_named(type)


def _operand(name: str, shape: MfmaShape, operand: str, bits: int) -> Fragment:
    """Return the fragment of A or B with elements of `bits` bits."""
    values = shape.k // shape.groups
    scaled = shape.types == ("f8f6f4",)
    chunk = K_CHUNK[bits] if scaled else values
    per, width = (values, values * bits) if 32 % bits else (max(1, 32 // bits), max(32, bits))
    return Fragment(
        name,
        (shape.mn, shape.k) if operand == "a" else (shape.k, shape.mn),
        threads=LANES,
        values=values,
        formula=partial(_along_k, shape=shape, operand=operand, chunk=chunk),
        since=shape.since,
        source=COMPOSABLE_KERNEL["test/mx_mfma_op, register mapping"] if scaled else CDNA[f"V_MFMA {shape}"],
        per_register=per,
        register_bits=width,
        element_bits=bits,
        summary=f"a lane holds {chunk} consecutive k of {'row' if operand == 'a' else 'column'} lane % {shape.mn}",
    )


def _along_k(lane: Integers, value: Integers, shape: MfmaShape, operand: str, chunk: int) -> tuple[Integers, Integers]:
    """Return places of A or B, `chunk` k per lane group in turn: fp8 16x16x128, lane 16, value 16 is k = 16 + 64."""
    outer = lane % shape.mn
    k = value % chunk + chunk * (lane // shape.mn + shape.groups * (value // chunk))
    return (outer, k) if operand == "a" else (k, outer)


def _accumulator(name: str, shape: MfmaShape, type: str) -> Fragment:
    """Return the fragment of C or D: runs of four rows, single rows for f64."""
    doubles = type != "f8f6f4" and _element(type) is F64
    formula, summary = partial(_down_rows, shape=shape, run=1 if doubles else 4), "a lane holds runs of rows of column"
    source, held = CDNA[f"V_MFMA {shape}"], "f64" if doubles else "f32"
    extent, said = (shape.mn, shape.mn), f"{summary} lane % {shape.mn}"
    return in_registers(name, extent, held, formula, source, shape.since, said, threads=LANES)


def _down_rows(lane: Integers, value: Integers, shape: MfmaShape, run: int) -> tuple[Integers, Integers]:
    """Return places of C or D, `run` rows per lane group in turn: 32x32, lane 32, value 5 is row 1 + 4 + 8."""
    return value % run + run * (lane // shape.mn + shape.groups * (value // run)), lane % shape.mn


def _scales(name: str, shape: MfmaShape, operand: str, byte: int) -> Fragment:
    """Return the fragment of scales in the byte of a register that OPSEL chooses."""
    extent = (shape.mn, shape.groups)
    return Fragment(
        name,
        extent if operand == "sfa" else extent[::-1],
        threads=LANES,
        values=4,
        since=shape.since,
        formula=partial(_one_byte, shape=shape, operand=operand, byte=byte),
        source=TRITON["MFMA scale layouts"],
        per_register=4,
        element_bits=8,
        summary=f"one E8M0 a lane, in the byte that OPSEL {byte} chooses: that of a K-block of 32, not of the lane's data",
    )


def _one_byte(lane: Integers, value: Integers, shape: MfmaShape, operand: str, byte: int) -> tuple[Integers, Integers]:
    outer, block = lane % shape.mn, lane // shape.mn
    return only(value == byte, outer, block) if operand == "sfa" else only(value == byte, block, outer)


@grammar(r"mfma\.([0-9]{1,6})x([0-9]{1,6})x([0-9]{1,6})\.([a-z]+[0-9][a-z0-9]*)\.(sf[ab]|[abcd])(\.[a-z]+[0-9]{1,6})?")
def refusal(name: str, match: re.Match[str]) -> RefsimError:
    """Return the reason that no instruction has the fragment."""
    m, n, k, type, operand, suffix = match.groups()
    having = [shape for shape in MFMA_SHAPES if type in shape.types]
    if not having:
        have = ", ".join(dict.fromkeys(type for shape in MFMA_SHAPES for type in shape.types))
        return refuse(name, f"MFMA does not multiply {type}", f"CDNA ISA: types are {have}")
    if f"{m}x{n}x{k}" not in map(str, having):
        have = ", ".join(map(str, having))
        return refuse(name, f"MFMA of {type} has no {m}x{n}x{k}", f"CDNA ISA: {type} with one block is {have}")
    if operand.startswith("sf") and type != "f8f6f4":
        return refuse(name, f"MFMA of {type} has no scale operands", "CDNA4 ISA: only f8f6f4 is block-scaled")
    rule = "f8f6f4 data is fp8, or .fp6 or .fp4; its scales stand in byte 0, or .byte1 to .byte3"
    return refuse(name, f"{operand} of {type} takes no suffix {suffix}", rule)
