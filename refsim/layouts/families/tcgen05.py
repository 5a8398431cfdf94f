"""Fragments of tcgen05: accumulators and scale factors in tensor memory, and the registers of tcgen05.ld and st."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from refsim.errors import RefsimError
from refsim.layouts.families.core import Formula, Fragment, Integers, Row, group, only, refuse, within
from refsim.sources import PTX

SINCE = "sm_100a"
TENSOR_MEMORY_LANES = 128
_PLACE = ("TMEM lane", "column")


@dataclass(frozen=True)
class Accumulator:
    """Describe D of one M in tensor memory: N is cut into `cuts` equal parts, which lie below each other.

    `ctas` CTAs hold M / ctas rows each; the lanes of the second CTA begin at 128. With `halved`, only the lower 16
    lanes of each 32 are used. m128 2sm: lane 64 of CTA 0 holds row 0 of the right half of the columns.
    """

    m: int
    variant: str
    columns: tuple[int, ...]
    ctas: int = 1
    cuts: int = 1
    halved: bool = False

    def coord(self, lane: Integers, column: Integers, n: int) -> tuple[Integers, Integers]:
        """Return the row and column of D at a lane and column of tensor memory, for N columns; (-1, -1) if unused."""
        cta, lane = lane // TENSOR_MEMORY_LANES, lane % TENSOR_MEMORY_LANES
        if self.halved:
            return only(lane % 32 < 16, lane // 32 * 16 + lane % 32, column)
        rows = self.m // self.ctas
        return cta * rows + lane % rows, lane // rows * (n // self.cuts) + column


EIGHTS, SIXTEENS, POWERS = tuple(range(8, 257, 8)), tuple(range(16, 257, 16)), (64, 128, 256)
ACCUMULATORS = (
    Accumulator(64, "1sm", EIGHTS, halved=True),
    Accumulator(128, "1sm", EIGHTS),
    Accumulator(128, "2sm", SIXTEENS, ctas=2, cuts=2),
    Accumulator(256, "2sm", SIXTEENS, ctas=2),
    Accumulator(32, "ws", POWERS, cuts=4),
    Accumulator(64, "ws", POWERS, cuts=2),
    Accumulator(128, "ws", POWERS),
)


def _by_lane(lane: Integers, value: Integers) -> tuple[Integers, Integers]:
    return lane, value


def _eights(lane: Integers, value: Integers) -> tuple[Integers, Integers]:
    """Return places of 16x256b: the accumulator of mma.sync, eight columns further on every four registers."""
    return group(lane) + 8 * ((value >> 1) & 1), 8 * (value >> 2) + 2 * within(lane) + (value & 1)


def _fours(lane: Integers, value: Integers) -> tuple[Integers, Integers]:
    """Return places of 16x128b: rows g and g + 8 of column q, four columns further on every two registers."""
    return group(lane) + 8 * (value & 1), 4 * (value >> 1) + within(lane)


def _twos(lane: Integers, value: Integers) -> tuple[Integers, Integers]:
    """Return places of 16x64b: a lane's lowest bit chooses row g or g + 8, its next bit one of two columns."""
    return group(lane) + 8 * (lane & 1), 2 * value + ((lane >> 1) & 1)


def _split(lane: Integers, value: Integers, count: int) -> tuple[Integers, Integers]:
    """Return places of 16x32bx2: lanes 16 to 31 read rows 0 to 15, too, `count` columns further on.

    The columns are further on if immHalfSplitoff is `count`.
    """
    return lane & 15, value + count * (lane >> 4)


@dataclass(frozen=True)
class Move:
    """Describe one shape of tcgen05.ld and st: rows, then per repeat the registers of a lane and the 32-bit columns."""

    shape: str
    rows: int
    registers: int
    columns: int
    most: int
    formula: Formula


MOVES = (
    Move("32x32b", 32, 1, 1, 128, _by_lane),
    Move("16x64b", 16, 1, 2, 128, _twos),
    Move("16x128b", 16, 2, 4, 64, _fours),
    Move("16x256b", 16, 4, 8, 32, _eights),
    Move("16x32bx2", 16, 1, 2, 128, _by_lane),
)


# Scale vector -> K-blocks of one instruction, and the sf_id that its first byte may be
VECTORS = {"1x": (1, (0, 1, 2, 3)), "2x": (2, (0, 2)), "4x": (4, (0,)), "3x": (3, (0, 1, 2, 3)), "6x": (6, (0, 2))}
LONG_VECTORS = ("3x", "6x")  # vectors of K = 96, which continue in the next four bytes of a row
_TILE_ROWS = 128  # scales of so many rows lie in columns side by side, before the next four bytes of each row
A_ROWS = (64, 128)


def rows() -> Iterator[Row]:
    """Yield every name of the family with the function that builds its fragment."""
    for row in ACCUMULATORS:
        for n in row.columns:
            name = f"tcgen05.m{row.m}n{n}.{row.variant}.d"
            yield name, partial(_accumulator, name, row, n)
    for direction in ("ld", "st"):
        for move in MOVES:
            for count in (1 << bit for bit in range(move.most.bit_length())):
                name = f"tcgen05.{direction}.{move.shape}.x{count}"
                yield name, partial(_move, name, direction, move, count)
    for vector, (_, ids) in VECTORS.items():
        for identity in ids:
            suffix = f".id{identity}" if identity else ""
            for m in A_ROWS:
                yield (
                    (name := f"tcgen05.m{m}.{vector}.sfa{suffix}"),
                    partial(_scales, name, "sfa", m, vector, identity, 1),
                )
            for n in EIGHTS:
                yield (
                    (name := f"tcgen05.n{n}.{vector}.sfb{suffix}"),
                    partial(_scales, name, "sfb", n, vector, identity, 1),
                )
                if n % 64 == 0 and vector not in LONG_VECTORS:
                    halves = f"tcgen05.n{n}.{vector}.sfb.2x2{suffix}"
                    yield halves, partial(_scales, halves, "sfb", n, vector, identity, 2)


def _accumulator(name: str, row: Accumulator, n: int) -> Fragment:
    """Return the fragment of D with N columns."""
    across = {1: "", 2: ", the right half of the columns 64 lanes further down"}.get(
        row.cuts, ", column quarters 32 lanes apart"
    )
    return Fragment(
        name,
        (row.m, n),
        threads=TENSOR_MEMORY_LANES * row.ctas,
        values=n // row.cuts,
        formula=partial(row.coord, n=n),
        since=SINCE,
        source=PTX["tcgen05, data path layout organization"],
        units=_PLACE,
        summary=f"{row.m // row.ctas} rows a CTA{across}" + ", in lanes 0 to 15 of each 32" * row.halved,
    )


def _move(name: str, direction: str, move: Move, count: int) -> Fragment:
    """Return the fragment of `count` repeats of tcgen05.ld or st; `direction` is "ld" or "st"."""
    formula = partial(_split, count=count) if move.shape == "16x32bx2" else move.formula
    offset = f"; immHalfSplitoff = {count}" if move.shape == "16x32bx2" else ""
    return Fragment(
        name,
        (move.rows, move.columns * count),
        threads=32,
        values=move.registers * count,
        formula=formula,
        since=SINCE,
        source=PTX[f"tcgen05.{direction}, matrix fragments"],
        summary=f"row and col count TMEM lanes and 32-bit columns from the address{offset}",
    )


def _scales(name: str, operand: str, extent: int, vector: str, identity: int, halves: int) -> Fragment:
    """Return the fragment of scales that begin at byte `identity`; with `halves` 2, 64 lanes hold half the rows."""
    blocks, _ = VECTORS[vector]
    further = (identity + blocks - 1) // 4 * _next_columns(extent)
    return Fragment(
        name,
        (extent, blocks) if operand == "sfa" else (blocks, extent),
        threads=TENSOR_MEMORY_LANES,
        since=SINCE,
        values=4 * (further + -(-extent // (32 * halves))),
        source=PTX["tcgen05, scale factor layouts"],
        per_register=4,
        element_bits=8,
        formula=partial(_scale_bytes, operand=operand, extent=extent, blocks=blocks, identity=identity, halves=halves),
        units=("TMEM lane", "byte"),
        summary=f"32 rows a column, repeated on lanes + 32{', + 64 and + 96' * (halves == 1)}; bytes from sf_id {identity} on",
    )


def _next_columns(extent: int) -> int:
    """Return the number of columns to the next four scales of each row: the columns of whole tiles of 128 rows."""
    return 4 * -(-extent // _TILE_ROWS)


def _scale_bytes(
    lane: Integers, value: Integers, operand: str, extent: int, blocks: int, identity: int, halves: int
) -> tuple[Integers, Integers]:
    """Return places of scales: byte v of a lane is K-block v % 4 - sf_id of row lane % 32 + 32 * (v / 4).

    The row is in the half of the operand that owns the lane.
    """
    half, step = lane // 64 if halves == 2 else 0 * lane, _next_columns(extent)
    outer = lane % 32 + 32 * ((value >> 2) % step) + half * (extent // 2)
    block = (value & 3) + 4 * ((value >> 2) // step) - identity
    used = (block >= 0) & (block < blocks) & (outer < extent)
    return only(used, outer, block) if operand == "sfa" else only(used, block, outer)


_D = re.compile(r"tcgen05\.m([0-9]{1,6})n([0-9]{1,6})\.(1sm|2sm|ws)\.([abcd])")
_MOVE = re.compile(r"tcgen05\.(?:ld|st)\.([0-9]{1,6}x[0-9]{1,6}b(?:x2)?)\.x([0-9]{1,6})")
_SCALE = re.compile(r"tcgen05\.([mn])([0-9]{1,6})\.([0-9]{1,6}x)\.(sf[ab])(\.2x2)?(?:\.id([0-9]{1,6}))?")


def refusal(name: str) -> RefsimError | None:
    """Return the reason that no instruction has the fragment; None where the name does not follow the grammar."""
    if match := _D.fullmatch(name):
        return _accumulator_refusal(name, *match.groups())
    if match := _MOVE.fullmatch(name):
        move = next((move for move in MOVES if move.shape == match[1]), None)
        if move is None:
            known = ", ".join(row.shape for row in MOVES)
            return refuse(name, f"tcgen05 moves no {match[1]}", f"PTX ISA, tcgen05.ld: {known}")
        rule = f"PTX ISA, tcgen05.ld: {move.shape} takes a power of two to x{move.most}"
        return refuse(name, f"{move.shape} has no x{match[2]}", rule)
    if match := _SCALE.fullmatch(name):
        return _scale_refusal(name, *match.groups())
    return None


def _accumulator_refusal(name: str, m: str, n: str, variant: str, operand: str) -> RefsimError:
    """Return the error for a name of D in tensor memory."""
    fitting = [row for row in ACCUMULATORS if row.variant == variant]
    row = next((row for row in fitting if row.m == int(m)), None)
    if row is None:
        have = ", ".join(str(row.m) for row in fitting)
        return refuse(name, f"tcgen05.mma {variant} has no M = {m}", f"PTX ISA, tcgen05.mma: M of {variant} is {have}")
    if int(n) not in row.columns:
        step = {EIGHTS: "8 to 256 in steps of 8", SIXTEENS: "16 to 256 in steps of 16"}.get(
            row.columns, "64, 128 or 256"
        )
        return refuse(name, f"tcgen05.mma {variant} has no N = {n}", f"PTX ISA, tcgen05.mma: N of {variant} is {step}")
    return refuse(name, f"operand {operand} is not an accumulator in tensor memory", "only D has a name of this form")


def _scale_refusal(
    name: str, side: str, extent: str, vector: str, operand: str, halves: str | None, identity: str | None
) -> RefsimError:
    """Return the error for a name of scales in tensor memory."""
    if vector not in VECTORS:
        return refuse(name, f"no scale vector is {vector}", f"PTX ISA, tcgen05.mma: {', '.join(VECTORS)}")
    if side != {"sfa": "m", "sfb": "n"}[operand]:
        return refuse(
            name, f"{operand} is not named by {side.upper()}", "scale A is named by the rows of a CTA, scale B by N"
        )
    if int(extent) not in (A_ROWS if operand == "sfa" else EIGHTS):
        have = "64 or 128 rows a CTA" if operand == "sfa" else "N of 8 to 256 in steps of 8"
        return refuse(name, f"no scale operand has extent {extent}", f"PTX ISA, tcgen05.mma: {operand} has {have}")
    if halves and (operand == "sfa" or int(extent) % 64 or vector in LONG_VECTORS):
        return refuse(
            name, f"{operand} of {extent} has no halves", "CuTe, ScaleFactorDuplicated2by2: scale B, N a multiple of 64"
        )
    _, ids = VECTORS[vector]
    rule = f"PTX ISA, instruction descriptor: sf_id of {vector} is one of {ids}"
    return refuse(name, f"sf_id {identity} does not begin {vector}", rule, "0 takes no suffix")
