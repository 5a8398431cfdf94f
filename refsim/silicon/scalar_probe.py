"""The probe of scalar instructions: the PTX around one instruction, and its operands.

Both sides of a comparison use this module: a GPU ran the kernel once and its results were recorded, the simulator runs
the identical PTX on identical operands. Operands are a fixed function of the input's number, so only results are
stored. In a replay, a form of one pure instruction or comparison is computed by its instruction implementation. Other
forms (a vote, an atomic, a chain of carries) run as the PTX that the GPU ran.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim import ptx
from refsim.errors import RefsimError, unknown
from refsim.formats import BF16, F16, F32, F64, Format
from refsim.kernels import Launcher
from refsim.ptx.isa.forms import bind, pure_function
from refsim.silicon.vectors import CHUNK, Recording, digest, splitmix64

Words = NDArray[np.unsignedinteger[Any]]
TABLE_ROWS = 1024
"""Inputs whose operands and results are stored in full: mostly pairs of special values."""
DIGEST_CHUNKS = 16
"""Chunks of 65,536 further inputs whose digests are stored."""

PROBE_THREADS = 256
_HEADER = ".version 9.0\n.target sm_90a\n.address_size 64\n"


@dataclass(frozen=True)
class ScalarForm:
    """One instruction under test: `name` is its opcode, `body` the PTX from %a, %b, %c, %e to %d.

    The body may use predicates %p, %q, words %x, %y, long words %wide, %wider, and memory of its own at [%cell], as
    wide as the result. `operands` names a kind of pattern for each operand; `result` is the width of %d in bits.
    """

    name: str
    operands: tuple[str, ...]
    result: int
    body: str

    def kernel(self, entry: str) -> str:
        """Return the PTX entry (in 0 .. n-1 pointers, out pointer, u32 rows) that applies the body to each input."""
        names = "abce"[: len(self.operands)]
        widths = [kind_bits(kind) for kind in self.operands]
        lines = [f".visible .entry {entry}("]
        lines += [f"  .param .u64 in_{name}," for name in names]
        lines += ["  .param .u64 out,", "  .param .u32 rows", ")", "{"]
        lines += [f"  .reg .b{width} %{name};" for name, width in zip(names, widths, strict=True)]
        lines += [f"  .reg .b{self.result} %d;", "  .reg .pred %p, %q, %guard;", "  .reg .b32 %x, %y, %z, %row, %rows;"]
        lines += ["  .reg .b64 %address, %offset, %wide, %wider, %cell;"]
        lines += ["  mov.u32 %x, %ctaid.x;", "  mov.u32 %y, %ntid.x;", "  mov.u32 %z, %tid.x;"]
        lines += ["  mad.lo.u32 %row, %x, %y, %z;", "  ld.param.u32 %rows, [rows];"]
        lines += ["  setp.ge.u32 %guard, %row, %rows;", "  @%guard bra DONE;"]
        for name, width in zip(names, widths, strict=True):
            lines += [f"  ld.param.u64 %address, [in_{name}];", f"  mul.wide.u32 %offset, %row, {width // 8};"]
            lines += ["  add.u64 %address, %address, %offset;", f"  ld.global.b{width} %{name}, [%address];"]
        lines += ["  ld.param.u64 %address, [out];", f"  mul.wide.u32 %offset, %row, {self.result // 8};"]
        lines += ["  add.u64 %cell, %address, %offset;"]
        lines += [f"  {line}" for line in self.body.splitlines()]
        lines += [f"  st.global.b{self.result} [%cell], %d;"]
        return "\n".join([*lines, "DONE:", "  ret;", "}"])

    @classmethod
    def alone(cls, opcode: str, operands: tuple[str, ...], result: int) -> "ScalarForm":
        """Return the probe of one instruction with these operands, in order."""
        names = "".join(f", %{name}" for name in "abce"[: len(operands)])
        return cls(opcode, operands, result, f"{opcode} %d{names};")

    def program(self, target: str) -> str:
        """Return the module of this form alone, for a target."""
        return re.sub(r"(?m)^\.target .*$", f".target {target}", probe_module([self]))

    def launch(self, launcher: Launcher, operands: Sequence[Words], name: str = "") -> Words:
        """Return the results of a launcher that has loaded `program`; `name` tells the buffers of launches apart."""
        count = operands[0].size
        inputs = [
            launcher.upload(each, name=f"{operand}{name}") for operand, each in zip("abce", operands, strict=False)
        ]
        out = launcher.output(count, np.dtype(f"u{self.result // 8}"), name=f"d{name}")
        launcher.launch("form_0", (-(-count // PROBE_THREADS),), (PROBE_THREADS,), [*inputs, out, np.uint32(count)])
        return launcher.read(out)


def probe_module(forms: list[ScalarForm]) -> str:
    """Return the PTX module with entries `form_0` and on, as ptxas assembled it and the simulator runs it."""
    return "\n".join([_HEADER, *(form.kernel(f"form_{number}") for number, form in enumerate(forms))]) + "\n"


def _specials(kind: Format) -> list[int]:
    """Return both signs of zero, subnormals, powers of two, ties, odd integers, the largest, infinity and all kinds of
    NaN."""
    m, top, one = kind.mantissa_bits, (1 << kind.exponent_bits) - 1, kind.bias
    magnitudes = [0, 1, 2, 3, (1 << m) - 1, 1 << m, (1 << m) + 1, 2 << m, (one - 1) << m, one << m, (one << m) + 1]
    magnitudes += [(one << m) - 1, (one << m) | 1 << (m - 1), (one << m) | (1 << m) - 1, (one + 1) << m]
    magnitudes += [(one + 1) << m | 1 << (m - 1), (one + m) << m, (one + m) << m | 1, (one + m + 1) << m | 1]
    magnitudes += [min(one + e, top - 1) << m for e in (7, 8, 15, 16, 30, 31, 32, 62, 63, 64)]
    magnitudes += [(min(one + e, top - 1) << m) - 1 for e in (8, 16, 31, 32, 63, 64)]
    magnitudes += [(top << m) - 1, top << m, top << m | 1, top << m | 1 << (m - 1), (top + 1 << m) - 1]
    # All ones except bit 3 is 0x7ff7: tensor maps fill with this NaN, and fma.oob tests for it.
    magnitudes += [(top + 1 << m) - 9, top << m | 1 << (m - 2) | 5, max(one - m, 1) << m]
    magnitudes += [max(one - m - 1, 1) << m, (one // 2) << m]
    return magnitudes + [value | 1 << (kind.bits - 1) for value in magnitudes]


def _corners_of(kind: Format) -> list[int]:
    """Return the sixteen patterns that are combined in every pair, the most telling first."""
    m, top, one = kind.mantissa_bits, (1 << kind.exponent_bits) - 1, kind.bias
    minus = kind.sign_mask
    first = [0, minus, top << m, top << m | 1 << (m - 2) | 5, one << m, minus | one << m, minus | top << m]
    others = [(minus << 1) - 1, 1, minus | 1, (top << m) - 1, minus | (top << m) - 1, 1 << m, minus | 1 << m]
    return [*first, *others, (top + 1 << m) - 9, (one << m) | 1 << (m - 1)]


_FLOATS = {row.name: row for row in (F16, BF16, F32, F64)}
_PAIRS = {"f16x2": "f16", "bf16x2": "bf16"}
_INTEGERS = {"u16": 16, "u32": 32, "u64": 64}
_SHIFTS = [*range(20), 23, 24, 30, 31, 32, 33, 47, 48, 63, 64, 65, 95, 127, 128, 255, 256, 257, 1 << 31, (1 << 32) - 1]


def kind_bits(kind: str) -> int:
    """Return the width of an operand kind in memory: 32 for f16x2, shift and u32, 64 for f64."""
    if kind in _FLOATS:
        return _FLOATS[kind].bits
    if kind in _PAIRS or kind == "shift":
        return 32
    if kind in _INTEGERS:
        return _INTEGERS[kind]
    raise unknown("operand kind", kind, [*_FLOATS, *_PAIRS, *_INTEGERS, "shift"])


def operand_rows(kinds: tuple[str, ...], start: int, count: int, *, specials: bool = False) -> list[NDArray[np.uint64]]:
    """Return the operands of inputs start .. start + count - 1, one array per kind, in its unsigned integer.

    A hash of the input's number chooses the source of each operand among eight: special values, raw bits, values near
    1, few mantissa bits, subnormals and largest values, the previous operand nearly negated, and the operand with which
    product or sum nearly vanish. With `specials` all are special values.
    """
    if start < 0 or count < 0:
        raise RefsimError("out-of-range", f"rows {start} to {start + count} do not exist", rule="rows count from 0")
    dtypes = [np.dtype(f"u{kind_bits(kind) // 8}") for kind in kinds]
    rows = np.arange(start, start + count, dtype=np.uint64)
    found: list[NDArray[np.uint64]] = []
    for slot, kind in enumerate(kinds):
        if kind in _PAIRS:
            halves = []
            for half in (0, 1):
                before = [(earlier >> np.uint64(16 * half)) & np.uint64(0xFFFF) for earlier in found]
                halves.append(_one(_PAIRS[kind], rows, slot + 8 * half, before, specials))
            found.append(halves[0] | halves[1] << np.uint64(16))
        else:
            found.append(_one(kind, rows, slot, found, specials))
    return [patterns.astype(dtype) for patterns, dtype in zip(found, dtypes, strict=True)]


def table_operands(kinds: tuple[str, ...]) -> list[NDArray[np.uint64]]:
    """Return the operands of the stored inputs: a quarter pairs of corners, half special values, a quarter random. One
    operand takes its first 256 special values, two 16 corners each, three 6, four 4."""
    corner_rows, special_rows = TABLE_ROWS // 4, TABLE_ROWS // 2
    each = {1: corner_rows, 2: 16, 3: 6, 4: 4}[len(kinds)]
    count = np.arange(corner_rows, dtype=np.uint64)
    columns = []
    for slot, kind in enumerate(kinds):
        digit = count // np.uint64(each**slot) % np.uint64(each)
        columns.append(_corners(kind, digit).astype(np.dtype(f"u{kind_bits(kind) // 8}")))
    middle = operand_rows(kinds, corner_rows, special_rows, specials=True)
    rest = operand_rows(kinds, corner_rows + special_rows, TABLE_ROWS - corner_rows - special_rows)
    return [np.concatenate(parts) for parts in zip(columns, middle, rest, strict=True)]


def _corners(kind: str, number: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return the number-th corner of a kind, then its special values, cyclically."""
    if kind in _PAIRS:
        rotated = number + np.uint64(1)
        return _corners(_PAIRS[kind], number) | _corners(_PAIRS[kind], rotated) << np.uint64(16)
    if kind == "shift":
        values = [0, 1, 31, 32, 8, 33, 63, 64, 4, 16, 65, 255, 256, (1 << 32) - 1, 24, 1 << 31, *_SHIFTS]
    elif kind in _INTEGERS:
        values = _integer_specials(_INTEGERS[kind])
    else:
        values = [*_corners_of(_FLOATS[kind]), *_specials(_FLOATS[kind])]
    return _chosen(values, number)


def chunk_operands(kinds: tuple[str, ...], chunk: int) -> list[NDArray[np.uint64]]:
    """Return the operands of the 65,536 inputs of one digest."""
    return operand_rows(kinds, (chunk + 1) << 16, 1 << 16)


def _one(
    kind: str, rows: NDArray[np.uint64], slot: int, before: list[NDArray[np.uint64]], specials: bool
) -> NDArray[np.uint64]:
    """Return one operand of the inputs: the source that a hash of the input's number chooses."""
    mixed = splitmix64(rows * np.uint64(16) + np.uint64(slot))
    choice = np.zeros(rows.shape, np.int64) if specials else (mixed & np.uint64(7)).astype(np.int64)
    noise = splitmix64(mixed)
    if kind == "shift":
        return _shift_patterns(choice, noise)
    if kind in _INTEGERS:
        return _integer_patterns(_INTEGERS[kind], choice, noise, before)
    return _float_patterns(_FLOATS[kind], choice, noise, before)


def _pick(values: list[int], noise: NDArray[np.uint64]) -> NDArray[np.uint64]:
    return _chosen(values, noise >> np.uint64(8))


def _chosen(values: list[int], number: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return the number-th of some values, cyclically."""
    table: NDArray[np.uint64] = np.array(values, dtype=np.uint64)
    return table.take((number % np.uint64(len(values))).astype(np.int64))  # NumPy 2.0 takes no unsigned places


def _shift_patterns(choice: NDArray[np.int64], noise: NDArray[np.uint64]) -> NDArray[np.uint64]:
    raw = noise & np.uint64(0xFFFFFFFF)
    near = [noise % np.uint64(limit) for limit in (33, 40, 65, 72, 256, 300)]
    return np.asarray(np.choose(choice, [_pick(_SHIFTS, noise), raw, *near]))


def _integer_specials(bits: int) -> list[int]:
    """Return extremes, small numbers and the extremes of narrower types; the first sixteen are the corners."""
    top = 1 << (bits - 1)
    values = [0, 1, 2 * top - 1, top, top - 1, 2 * top - 2, 2, top + 1, 3]
    values += [0x80, 0x7F, 0xFF, 0x100, 0x7FFF, 0x8000, 0xFFFF]
    return [*values, 7, 8, 10, (1 << (bits // 2)) - 1, 1 << (bits // 2), 2 * top - 0x80, 2 * top - 0x81]


def _integer_patterns(
    bits: int, choice: NDArray[np.int64], noise: NDArray[np.uint64], before: list[NDArray[np.uint64]]
) -> NDArray[np.uint64]:
    """Return integers from the chosen source: special, random, small, near powers of two, near the last operand."""
    mask = np.uint64((1 << bits) - 1)
    small = noise % np.uint64(64)
    power = np.uint64(1) << ((noise >> np.uint64(8)) % np.uint64(bits))
    sparse = noise & splitmix64(noise) & splitmix64(~noise)
    other = before[-1] ^ small if before else noise
    sources = [
        _pick(_integer_specials(bits), noise),
        noise,
        noise,
        small,
        ~small,
        power + small % np.uint64(3) - np.uint64(1),
    ]
    return np.choose(choice, [*sources, other, sparse]) & mask


def _float_patterns(
    kind: Format, choice: NDArray[np.int64], noise: NDArray[np.uint64], before: list[NDArray[np.uint64]]
) -> NDArray[np.uint64]:
    """Return floats from the chosen source, as `operand_rows` lists them."""
    m, top, one = kind.mantissa_bits, (1 << kind.exponent_bits) - 1, kind.bias
    mask, fraction = np.uint64((1 << kind.bits) - 1), noise & np.uint64((1 << m) - 1)
    sign = (noise >> np.uint64(63)) << np.uint64(kind.bits - 1)
    pick = (noise >> np.uint64(53)) % np.uint64(1021)

    def with_exponent(field: NDArray[np.uint64], mantissa: NDArray[np.uint64]) -> NDArray[np.uint64]:
        return sign | field << np.uint64(m) | mantissa

    near_one = with_exponent(np.uint64(one - 4) + pick % np.uint64(9), fraction)
    few = (noise & np.uint64(7)) << np.uint64(m - 3) | ((noise >> np.uint64(3)) & np.uint64(1))
    sparse = with_exponent(np.uint64(max(one - m - 2, 1)) + pick % np.uint64(2 * m + 4 if 2 * m < one else one), few)
    edge = np.where(pick % np.uint64(3) == 0, np.uint64(top - 1) - pick % np.uint64(2), pick % np.uint64(3))
    edges = with_exponent(edge, fraction)
    negated = before[-1] ^ np.uint64(1 << (kind.bits - 1)) ^ (noise & np.uint64(3)) if before else noise
    sources = [_pick(_specials(kind), noise), noise, near_one, near_one, sparse, edges, negated]
    return np.choose(choice, [*sources, _cancelling(kind, noise, before)]) & mask


def _cancelling(kind: Format, noise: NDArray[np.uint64], before: list[NDArray[np.uint64]]) -> NDArray[np.uint64]:
    """Return the operand with which the result vanishes or underflows: c near -a*b, or b with a small a*b."""
    m, top, one = kind.mantissa_bits, (1 << kind.exponent_bits) - 1, kind.bias
    if not before:
        return noise
    if len(before) == 1:
        field = (before[0] >> np.uint64(m)) & np.uint64(top)
        target = (noise % np.uint64(m + 6)).astype(np.int64) - m - 3
        wanted = np.clip(target + one - field.astype(np.int64) + 1, 0, top - 1).astype(np.uint64)
        return wanted << np.uint64(m) | (noise >> np.uint64(8)) & np.uint64((1 << m) - 1)
    exponents = [((b >> np.uint64(m)) & np.uint64(top)).astype(np.int64) for b in before[:2]]
    significands = [((b & np.uint64((1 << m) - 1)) | np.uint64(1 << m)) for b in before[:2]]
    # The upper halves of both significands give the product to about half its width, in integers.
    halves = [s >> np.uint64(max(m - 30, 0)) for s in significands]
    product = halves[0] * halves[1]
    width = 2 * min(m, 30)
    carry = (product >> np.uint64(width + 1)) & np.uint64(1)
    scaled = product >> carry
    mantissa = (scaled >> np.uint64(width - m) if width >= m else scaled << np.uint64(m - width)) & np.uint64(
        (1 << m) - 1
    )
    field = np.clip(exponents[0] + exponents[1] - one + carry.astype(np.int64), 0, top - 1).astype(np.uint64)
    sign = (before[0] ^ before[1]) >> np.uint64(kind.bits - 1) ^ np.uint64(1)
    return np.asarray((sign << np.uint64(kind.bits - 1) | field << np.uint64(m) | mantissa) ^ (noise & np.uint64(1)))


SWAPPED_BY_PTXAS = {"mul.rn.f64 + add.rn.f64", "mul.f64 + add.rn.f64", "mul.rn.f64 + add.f64"}
"""ptxas assembles a*b + c as DADD c, a*b, and DADD keeps the second of two NaNs; PTX does not specify which NaN."""
OF_THE_UNIT = re.compile(
    r"(rcp|rsqrt|sqrt|ex2|lg2|sin|cos|tanh|div)\.(approx|full)(\.ftz)?\.f32|(rcp|rsqrt)\.approx(\.ftz)?\.f64"
    r"|(ex2|tanh)\.approx(\.ftz)?\.b?f16(x2)?"
)
"""Forms whose bits the tables of the special-function unit give."""
ARITHMETIC_ALONE = ptx.Checks(races="off", copies="off")
"""Checks of replays: only the arithmetic matters, so race and copy checks are off."""
_ATOMIC_SUM = re.compile(r"atom\S*\.add\.(\S+\.)?b?f\d")
_PURE = re.compile(r"\S+ %d((?:, %[abce])+);")
_TEST = re.compile(r"\S+ %p((?:, %[abce])+);\nselp\.u32 %d, 1, 0, %p;")


def form_of(recording: Recording) -> ScalarForm:
    """Return the recorded form."""
    facts = recording.facts
    return ScalarForm(recording.name, tuple(facts["operands"]), facts["result_bits"], facts["body"])


def open_reason(name: str) -> str | None:
    """Return why the bits of a form are unspecified, or None where they are specified."""
    if ".approx" in name and not OF_THE_UNIT.fullmatch(name):
        return "approximate"
    if _ATOMIC_SUM.match(name):
        return "atomic sum"
    bare = "mul" in name and " + " in name and ".rn" not in name
    return "contractible" if bare else None


def launched(form: ScalarForm, operands: list[Words], checks: ptx.Checks | None = None) -> tuple[Words, bool]:
    """Return a form's results on the simulator, and whether every bit of them is exact."""
    count = len(operands[0])
    results = np.zeros(count, np.dtype(f"u{form.result // 8}"))
    arguments = [*(column.copy() for column in operands), results, np.uint32(count)]
    trace = ptx.load(probe_module([form])).launch("form_0", (count // 256,), (256,), arguments, checks=checks)
    return results, trace.is_exact


def is_pure(recording: Recording) -> bool:
    """Return whether a form is one pure instruction or a comparison, which needs no machine."""
    body = recording.facts["body"]
    return bool(_TEST.fullmatch(body) or _PURE.fullmatch(body))


def computed(form: ScalarForm, operands: list[Words]) -> Words:
    """Return a form's results: by its instruction implementation if it is pure, else by a launch."""
    is_test = _TEST.fullmatch(form.body) is not None
    if is_test or _PURE.fullmatch(form.body):
        words = clause_words(form.body.partition(" ")[0], 1 if is_test else form.result, *operands)
        if words is not None:
            return words.astype(f"u{form.result // 8}")
    return launched(form, operands, ARITHMETIC_ALONE)[0]


def clause_words(opcode: str, result_bits: int, *operands: Words) -> Words | None:
    """Return an instruction implementation's results in a register of `result_bits`; None if it needs a machine."""
    bound = bind(opcode, operands=1 + len(operands))
    if bound.clause.wants_lanes or bound.clause.ends_block:
        return None
    with np.errstate(all="ignore"):
        (words,) = pure_function(bound, len(operands), [result_bits])(*operands)
    return np.broadcast_to(words, operands[0].shape)


def differing_rows(recording: Recording) -> tuple[int, int]:
    """Return the number of stored results, and how many of the model's results differ from them."""
    form = form_of(recording)
    got = computed(form, [recording.arrays[f"operand{slot}"] for slot in range(len(form.operands))])
    want = recording.arrays["result"]
    if recording.name in SWAPPED_BY_PTXAS:
        got, want = _without_payload(got), _without_payload(want)
    return want.size, int(np.count_nonzero(got != want))


def differing_chunks(recording: Recording, chunks: range) -> tuple[int, int]:
    """Return the number of further results in some chunks, and how many of their digests differ."""
    form, wanted = form_of(recording), recording.arrays["chunk_digests"]
    if recording.name in SWAPPED_BY_PTXAS:
        return 0, 0
    wrong = sum(digest(computed(form, list(_operands(form.operands, chunk)))) != wanted[chunk] for chunk in chunks)
    return CHUNK * len(chunks), int(wrong)


@lru_cache(maxsize=64)
def _operands(kinds: tuple[str, ...], chunk: int) -> tuple[Words, ...]:
    columns = tuple(chunk_operands(kinds, chunk))
    for column in columns:
        column.setflags(write=False)
    return columns


def _without_payload(patterns: Words) -> Words:
    """Return float64 patterns with every NaN replaced by one."""
    return np.where(np.isnan(patterns.view(np.float64)), np.uint64(0x7FF8000000000000), patterns)
