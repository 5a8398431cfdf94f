"""Fragments of mma.sync, from m8n8k4 of sm_70 to the block-scaled m16n8k64 of sm_120a."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import product

from refsim.errors import RefsimError
from refsim.formats import E2M1, F16, element_named
from refsim.layouts.families.core import (
    Formula,
    Fragment,
    Integers,
    Row,
    Shape,
    grammar,
    group,
    in_registers,
    only,
    refuse,
    within,
)
from refsim.sources import PTX, Source


class MmaShape(Shape):
    """Describe a shape of mma.sync; the first accumulator is the default."""

    @property
    def source(self) -> Source:
        """Return the section of the PTX ISA that shows the fragments of the shape."""
        return PTX[f"matrix fragments for mma.{self}"]

    @property
    def is_volta(self) -> bool:
        """Return whether the shape is m8n8k4 of f16, the one shape that computes four products."""
        return self.k == 4 and all(element_named(type) is F16 for type in self.types)


@dataclass(frozen=True)
class Scaling:
    """Describe the scale factors of one kind: `blocks` of them along K, at consecutive bytes of one register."""

    k: int
    kind: str
    blocks: int
    byte_ids: tuple[int, ...]
    since: str = "sm_120a"

    def __str__(self) -> str:
        return f"m16n8k{self.k}.{self.kind}.{self.blocks}x"


# m, n, k, types, accumulators, first target
MMA_SHAPES = (
    MmaShape(8, 8, 4, ("f16",), ("f32", "f16"), "sm_70"),
    MmaShape(8, 8, 4, ("f64",), ("f64",), "sm_80"),
    MmaShape(8, 8, 16, ("s8", "u8"), ("s32",), "sm_75"),
    MmaShape(8, 8, 32, ("s4", "u4"), ("s32",), "sm_75"),
    MmaShape(8, 8, 128, ("b1",), ("s32",), "sm_75"),
    MmaShape(16, 8, 4, ("tf32",), ("f32",), "sm_80"),
    MmaShape(16, 8, 4, ("f64",), ("f64",), "sm_90"),
    MmaShape(16, 8, 8, ("f16",), ("f32", "f16"), "sm_75"),
    MmaShape(16, 8, 8, ("bf16", "tf32"), ("f32",), "sm_80"),
    MmaShape(16, 8, 8, ("f64",), ("f64",), "sm_90"),
    MmaShape(16, 8, 16, ("f16",), ("f32", "f16"), "sm_80"),
    MmaShape(16, 8, 16, ("bf16",), ("f32",), "sm_80"),
    MmaShape(16, 8, 16, ("s8", "u8"), ("s32",), "sm_80"),
    MmaShape(16, 8, 16, ("e4m3", "e5m2"), ("f32", "f16"), "sm_89"),
    MmaShape(16, 8, 16, ("f64",), ("f64",), "sm_90"),
    MmaShape(16, 8, 32, ("s8", "u8", "s4", "u4"), ("s32",), "sm_80"),
    MmaShape(16, 8, 32, ("e4m3", "e5m2"), ("f32", "f16"), "sm_89"),
    MmaShape(16, 8, 32, ("e3m2", "e2m3", "e2m1"), ("f32", "f16"), "sm_120a"),
    MmaShape(16, 8, 64, ("s4", "u4"), ("s32",), "sm_80"),
    MmaShape(16, 8, 64, ("e2m1",), ("f32",), "sm_120a"),
    MmaShape(16, 8, 128, ("b1",), ("s32",), "sm_80"),
    MmaShape(16, 8, 256, ("b1",), ("s32",), "sm_80"),
)
MMA_SCALINGS = (
    Scaling(32, "mxf8f6f4", 1, (0, 1, 2, 3)),
    Scaling(64, "mxf4", 2, (0, 2)),
    Scaling(64, "mxf4nvf4", 2, (0, 2)),
    Scaling(64, "mxf4nvf4", 4, (0,)),
)
_USUAL_MAJOR = {"a": "row", "b": "col"}
THREAD_IDS = {"sfa": (0, 1), "sfb": (0, 1, 2, 3)}


def rows() -> Iterator[Row]:
    """Yield every name of the family with the function that builds its fragment."""
    for shape in MMA_SHAPES:
        for type, operand in product(shape.types, "abcd"):
            stem = f"mma.{shape}.{type}.{operand}"
            if operand in "cd":
                for accumulator in shape.accumulators:
                    refined = accumulator != shape.accumulators[0]
                    name = f"{stem}.{accumulator}" if refined else stem
                    yield name, partial(_accumulator, name, shape, accumulator)
            elif shape.is_volta:
                for major in ("row", "col"):
                    name = stem if major == _USUAL_MAJOR[operand] else f"{stem}.{major}"
                    yield name, partial(_volta_operand, name, shape, operand, major)
            else:
                yield stem, partial(_operand, stem, shape, type, operand)
    for scaling, operand in product(MMA_SCALINGS, THREAD_IDS):
        for byte, thread in product(scaling.byte_ids, THREAD_IDS[operand]):
            selector = f".byte{byte}.thread{thread}" if byte or thread else ""
            name = f"mma.{scaling}.{operand}{selector}"
            yield name, partial(_scales, name, scaling, operand, byte, thread)


def container_bits(type: str, k: int) -> tuple[int, int]:
    """Return slot width and lowest bit of an element; FP6 and FP4 of kind::f8f6f4 (k = 32) lie in bytes."""
    row = element_named(type)
    if k == 32 and row.code_bits < 8 and not row.is_integer:
        return 8, 2 if row is E2M1 else 0
    return row.code_bits, 0


def operand_a(lane: Integers, value: Integers, per: int, m: int = 16) -> tuple[Integers, Integers]:
    """Return places of A: a quad shares rows g and g + 8; a lane holds `per` consecutive k per register.

    Registers go down, then along k. m16n8k16.bf16: lane 5, value 3 is register 1 = row 1 + 8, k = 1 * 2 + 1.
    """
    register, place = value // per, value % per
    down, along = (register & 1, register >> 1) if m == 16 else (0, register)
    return group(lane) + 8 * down, within(lane) * per + place + along * 4 * per


def operand_b(lane: Integers, value: Integers, per: int) -> tuple[Integers, Integers]:
    """Return places of B: a quad holds column n = g, a lane `per` consecutive k per register, 4 * per k apart."""
    register, place = value // per, value % per
    return within(lane) * per + place + register * 4 * per, group(lane)


def accumulator(lane: Integers, value: Integers) -> tuple[Integers, Integers]:
    """Return places of C and D: a lane holds two neighboring columns of row g, then of row g + 8."""
    return group(lane) + 8 * (value >> 1), 2 * within(lane) + (value & 1)


def _operand(name: str, shape: MmaShape, type: str, operand: str) -> Fragment:
    """Return the fragment of A or B."""
    slot = container_bits(type, shape.k)
    per = max(1, 32 // slot[0])
    if operand == "a":
        extent, formula = (shape.m, shape.k), partial(operand_a, per=per, m=shape.m)
        summary = "a quad of lanes shares rows g and g + 8" if shape.m == 16 else "a quad of lanes shares row g"
    else:
        extent, formula, summary = (shape.k, shape.n), partial(operand_b, per=per), "a quad of lanes shares column g"
    return in_registers(name, extent, type, formula, shape.source, shape.since, summary, slot=slot)


def _accumulator(name: str, shape: MmaShape, type: str) -> Fragment:
    """Return the fragment of C or D with elements of `type`."""
    extent, formula, summary = (shape.m, shape.n), accumulator, "a lane holds pairs of neighboring columns"
    if shape.is_volta:
        formula = _volta_across if element_named(type) is F16 else _volta_d_f32
        extent, summary = (32, 8), _FOUR_PRODUCTS
    return in_registers(name, extent, type, formula, shape.source, shape.since, summary)


# m8n8k4 of f16 computes four products at once: product p is in lanes 4p to 4p + 3 and 16 + 4p to 16 + 4p + 3.
_FOUR_PRODUCTS = "product p of four has rows (in B: columns) 8p to 8p + 7 and lanes 4p.. and 16 + 4p.."


def _volta_operand(name: str, shape: MmaShape, operand: str, major: str) -> Fragment:
    """Return the fragment of A or B of m8n8k4 of f16, whose `major` is row or col."""
    outer_inner = _volta_across if major == _USUAL_MAJOR[operand] else _volta_along
    extent, formula = ((32, 4), outer_inner) if operand == "a" else ((4, 32), partial(_swapped, outer_inner))
    return in_registers(name, extent, "f16", formula, shape.source, shape.since, _FOUR_PRODUCTS)


def _swapped(formula: Formula, lane: Integers, value: Integers) -> tuple[Integers, Integers]:
    outer, inner = formula(lane, value)
    return inner, outer


def _volta_across(lane: Integers, value: Integers) -> tuple[Integers, Integers]:
    """Return places where a lane holds one row of its product: row lane % 4, in the upper half warp 4 + lane % 4."""
    return _volta_row(lane) + (lane & 3), value


def _volta_along(lane: Integers, value: Integers) -> tuple[Integers, Integers]:
    """Return places where a lane holds k = lane % 4 of four rows of its product, rows 4 to 7 in the upper half warp."""
    return _volta_row(lane) + value, lane & 3


def _volta_d_f32(lane: Integers, value: Integers) -> tuple[Integers, Integers]:
    """Return places of 32-bit accumulators, pairs of columns over two rows: lane 1, value 6 is row 1 + 2, column 4."""
    return _volta_row(lane) + (lane & 1) + (value & 2), (value & 4) + (lane & 2) + (value & 1)


def _volta_row(lane: Integers) -> Integers:
    return 8 * ((lane >> 2) & 3) + 4 * (lane >> 4)


# fmt: off
def _scales(name: str, scaling: Scaling, operand: str, byte: int, thread: int) -> Fragment:
    lanes = "8 quads, two lanes of each" if operand == "sfa" else "8 quads, one lane of each"
    return Fragment(
        name, (16, scaling.blocks) if operand == "sfa" else (scaling.blocks, 8), threads=32, values=4,
        formula=partial(_scale_a if operand == "sfa" else _scale_b, blocks=scaling.blocks, byte=byte, thread=thread),
        source=PTX["mma.sync, block scaling"], since=scaling.since, per_register=4, element_bits=8,
        summary=f"{lanes}: thread-id {thread}, from byte {byte} on; other registers are ignored",
    )
# fmt: on


def _scale_a(lane: Integers, value: Integers, blocks: int, byte: int, thread: int) -> tuple[Integers, Integers]:
    """Return places of A's scales: row m reads lane 4 * (m % 8) + 2 * thread-id + m / 8, K-block j byte byte-id + j."""
    row = group(lane) + 8 * (lane & 1)
    return only((within(lane) >> 1 == thread) & (value >= byte) & (value < byte + blocks), row, value - byte)


def _scale_b(lane: Integers, value: Integers, blocks: int, byte: int, thread: int) -> tuple[Integers, Integers]:
    """Return places of B's scales: column n reads lane 4n + thread-id, K-block j byte byte-id + j."""
    return only((within(lane) == thread) & (value >= byte) & (value < byte + blocks), value - byte, group(lane))


# fmt: off
@grammar(
    r"mma\.m(?P<m>[0-9]{1,6})n(?P<n>[0-9]{1,6})k(?P<k>[0-9]{1,6})\.(?P<type>[a-z]+[0-9a-z]*)(\.(?P<vector>[0-9])x)?\.(?P<operand>sf[ab]|[abcd])"
    r"(\.(?P<accumulator>f16|f32|s32|f64)|\.(?P<major>row|col)|\.byte(?P<byte>[0-9]{1,6})\.thread(?P<thread>[0-9]{1,6}))?"
)
def refusal(name: str, match: re.Match[str]) -> RefsimError:
    """Return the reason that no instruction has the fragment."""
    part = match.groupdict()
    shape, type = f"m{part['m']}n{part['n']}k{part['k']}", part["type"]
    of_shape = [row for row in MMA_SHAPES if str(row) == shape]
    scalings = [row for row in MMA_SCALINGS if row.kind == type]
    if scalings or part["operand"].startswith("sf"):
        return _scale_refusal(name, part, shape, scalings)
    if not any(type in row.types for row in MMA_SHAPES):
        have = ", ".join(dict.fromkeys(type for row in MMA_SHAPES for type in row.types))
        return refuse(name, f"mma.sync does not multiply {type}", f"PTX ISA, mma: types are {have}")
    if not of_shape:
        have = ", ".join(dict.fromkeys(str(row) for row in MMA_SHAPES if type in row.types))
        return refuse(name, f"mma.sync has no shape {shape}", f"PTX ISA, mma: {type} comes in {have}")
    fitting = [row for row in of_shape if type in row.types]
    if not fitting:
        have = ", ".join(type for row in of_shape for type in row.types)
        return refuse(name, f"mma.sync {shape} does not multiply {type}", f"PTX ISA, mma: {shape} takes {have}")
    if part["major"]:
        return refuse(name, f"{part['operand']} of {shape} {type} takes no suffix .{part['major']}",
                      "PTX ISA, mma: A is row major and B column major; only m8n8k4 of f16 takes both")
    if part["accumulator"]:
        have = ", ".join(fitting[0].accumulators)
        return refuse(name, f"{part['operand']} of {shape} {type} takes no suffix .{part['accumulator']}",
                      f"PTX ISA, mma: accumulators of {shape} {type} are {have}", "the first takes no suffix")
    rule = "PTX ISA, mma: only kinds mxf8f6f4, mxf4 and mxf4nvf4 are block-scaled"
    return refuse(name, f"{part['operand']} of {shape} {type} is not a scale", rule)


def _scale_refusal(name: str, part: dict[str, str | None], shape: str, scalings: list[Scaling]) -> RefsimError:
    """Return the error for a name of scales; `part` are the groups of the name, `scalings` the entries of its kind."""
    rule = "PTX ISA, mma: block scaling is " + ", ".join(str(row) for row in MMA_SCALINGS)
    fitting = [row for row in scalings if str(row) == f"{shape}.{row.kind}.{part['vector']}x"]
    if not fitting:
        asked = f"{shape}.{part['type']}" + (f".{part['vector']}x" if part["vector"] else " without a scale vector")
        return refuse(name, f"no block-scaled mma is {asked}", rule)
    operand = str(part["operand"])
    if operand not in THREAD_IDS:
        return refuse(name, f"kind {part['type']} names scale operands only, not {operand}", rule,
                      "operands a, b, c and d are named by their element type, as mma.m16n8k64.e2m1.a")
    return refuse(
        name, f"byte-id {part['byte']} and thread-id {part['thread']} do not select a scale of {operand}",
        f"ptxas: byte-id is one of {fitting[0].byte_ids}, thread-id one of {THREAD_IDS[operand]}",
        "both 0 take no suffix",
    )
# fmt: on
