"""The tensor-core instructions of the probe kernels, and one function that multiplies with any of them.

Operands are codes; the fragments of `refsim.layouts` map codes to registers. B of wgmma is in shared memory as core
matrices of 8 rows x 16 bytes: the two of a row group next to each other, then the next 8 rows.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import count, product
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from refsim.bundled import bundled
from refsim.errors import RefsimError, named, unknown
from refsim.formats import BF16, E2M1, E2M3, E3M2, E4M3, E5M2, F16, F32, F64, S8, S32, TF32, U8, ElementType
from refsim.kernels import Buffer, Launcher
from refsim.layouts.descriptors import descriptor
from refsim.layouts.families import Fragment, fragment
from refsim.numerics.multiply import ProductSpec
from refsim.targets import target_named

Codes = NDArray[np.unsignedinteger[Any]]

ACCUMULATE, NEGATE_A, NEGATE_B = 1, 2, 4
"""Flags of the wgmma entries: scale-d of the first step, imm-scale-a and imm-scale-b."""
CORE_BYTES = 128
K_BYTES = 32
WGMMA_N = (8, 64, 256)
Types = tuple[ElementType, ...]
FP8: Types = (E4M3, E5M2)
INTEGER_TYPES: Types = (S8, U8)
F8F6F4: Types = (E4M3, E5M2, E3M2, E2M3, E2M1)
_names = count()


@dataclass(frozen=True, eq=False)
class TensorCoreInstruction(ProductSpec):
    """One tensor-core instruction: its product, its PTX opcode, the entry of the probe file, its first target.

    `since` is the first target that has the instruction; with a suffix a, the only one. wgmma m64n8k32 of E4M3 is
    wgmma.mma_async.sync.aligned.m64n8k32.f32.e4m3.e4m3, since sm_90a.
    """

    name: str
    entry: str
    since: str

    @property
    def threads(self) -> int:
        """Return the number of threads that execute the instruction."""
        return 128 if self.unit == "wgmma" else 32

    def runs_on(self, target: str) -> bool:
        """Return whether a target has the instruction: sm_90a has wgmma, sm_90 does not."""
        if self.since.endswith("a"):
            return target == self.since  # the probes are compiled for no other one
        return target_named(target).number >= target_named(self.since).number

    def fragment(self, operand: str) -> Fragment:
        """Return the fragment of "a", "b" (not of wgmma) or "d"."""
        shape, unit = f"m{self.m}n{self.n}k{self.k}", "wgmma" if self.unit == "wgmma" else "mma"
        type = self.b_format if operand == "b" else self.a_format
        refined = operand == "d" and self.d_format is F16
        return fragment(f"{unit}.{shape}.{type}.{operand}{'.f16' if refined else ''}")


KERNEL_FILE = bundled("gpu/probes/tensor_cores.cu")


def instructions(target: str) -> tuple[TensorCoreInstruction, ...]:
    """Return every instruction of the probe file for a target; instructions("sm_80") has 21. Raises RefsimError for a
    name that is no target from sm_80 on."""
    if target_named(target).number < 80:
        raise unknown("target", target, ["sm_80", "sm_86", "sm_89", "sm_90", "sm_90a", "sm_100a", "sm_120a"])
    return tuple(row for row in _every() if row.runs_on(target))


def instruction_named(name: str) -> TensorCoreInstruction:
    """Return the instruction of an opcode; raise with the nearest opcode for an unknown one."""
    return named("instruction", name, {row.name: row for row in _every()})


@lru_cache(maxsize=1)
def _every() -> tuple[TensorCoreInstruction, ...]:
    return (*_warp_rows(), *_warpgroup_rows())


def _warp(
    shape: tuple[int, int, int], d: ElementType, a: ElementType, b: ElementType, since: str, kind: str = ""
) -> TensorCoreInstruction:
    m, n, k = shape
    size = f"m{m}n{n}k{k}"
    modifier = f".kind::{kind}" if kind else ""
    prefix = f"mma_{kind}_" if kind else "mma_"
    name = f"mma.sync.aligned.{size}.row.col{modifier}.{d}.{a}.{b}.{d}"
    return TensorCoreInstruction(a, b, d, m, n, k, "mma.sync", name, f"{prefix}{size}_{d}_{a}_{b}", since)


def _warp_rows() -> Iterator[TensorCoreInstruction]:
    """Yield the instructions of a warp."""
    for type, d, k in (
        *product((F16,), (F32, F16), (16, 8)),
        *product((BF16,), (F32,), (16, 8)),
        *product((TF32,), (F32,), (8, 4)),
    ):
        yield _warp((16, 8, k), d, type, type, "sm_80")
    yield _warp((8, 8, 4), F64, F64, F64, "sm_80")
    for k in (4, 8, 16):
        yield _warp((16, 8, k), F64, F64, F64, "sm_90")
    for a, b in product(INTEGER_TYPES, INTEGER_TYPES):
        for shape in ((16, 8, 32), (16, 8, 16), (8, 8, 16)):
            yield _warp(shape, S32, a, b, "sm_80")
    for a, b, d, k in product(FP8, FP8, (F32, F16), (32, 16)):
        yield _warp((16, 8, k), d, a, b, "sm_89")
    for a, b, d in product(F8F6F4, F8F6F4, (F32, F16)):
        yield _warp((16, 8, 32), d, a, b, "sm_120a", "f8f6f4")


def _warpgroup_rows() -> Iterator[TensorCoreInstruction]:
    types: list[tuple[ElementType, ElementType, ElementType]]
    types = [(F16, F16, F32), (F16, F16, F16), (BF16, BF16, F32), (TF32, TF32, F32)]
    types += [*product(FP8, FP8, (F32, F16)), *product(INTEGER_TYPES, INTEGER_TYPES, (S32,))]
    for (a, b, d), n in product(types, WGMMA_N):
        k = K_BYTES // a.code_dtype.itemsize
        size = f"m64n{n}k{k}"
        name = f"wgmma.mma_async.sync.aligned.{size}.{d}.{a}.{b}"
        yield TensorCoreInstruction(a, b, d, 64, n, k, "wgmma", name, f"wgmma_{size}_{d}_{a}_{b}", "sm_90a")


# ---- one product -----------------------------------------------------------------------------------------------------


def products(
    launcher: Launcher,
    instruction: TensorCoreInstruction,
    a: ArrayLike,
    b: ArrayLike,
    c: ArrayLike | None = None,
    *,
    negate_a: bool = False,
    negate_b: bool = False,
) -> Codes:
    """Return D = A B^T + C of every product of a batch, as codes (batch, M, N), chained over K in one launch.

    `a` (batch, M, K) and `b` (batch, N, K): codes, unsigned integers of the format's width (s8 and u8 as bytes, tf32 as
    32-bit words); K is any multiple of the instruction's. `c` (batch, M, N): codes of D's format, or None: scale-d = 0
    for wgmma, a C of zeros for mma.sync. `negate_a`, `negate_b`: imm-scale-a, imm-scale-b = -1, wgmma of floats only.
    Every call leaves its buffers in the launcher: open a new launcher after a few calls. Raises RefsimError for
    arguments that do not fit. Rule: `numerics.mma` with the instruction's unit, formats and k.
    """
    x, y, z = _checked(instruction, a, b, c)
    if (negate_a or negate_b) and not instruction.negates:
        what = "the instruction turns no sign"
        raise RefsimError("bad-modifier", what, instruction.name, "imm-scale belongs to wgmma of floats")
    number, batch, steps = next(_names), x.shape[0], x.shape[-1] // instruction.k
    warpgroup = instruction.unit == "wgmma"
    images = {"a": instruction.fragment("a").packed(_by_step(x, instruction.k))}
    by_step = _by_step(y, instruction.k)
    images["b"] = _tiles(by_step) if warpgroup else instruction.fragment("b").packed(by_step.swapaxes(-1, -2))
    layout = instruction.fragment("d")
    if z is None:
        z = np.zeros((0 if warpgroup else batch, instruction.m, instruction.n), instruction.d_format.code_dtype)
    images["c"] = layout.packed(z) if z.size else np.zeros(1, np.uint32)
    buffers = [launcher.upload(image, name=f"{name}{number}") for name, image in images.items()]
    word = np.dtype(f"u{layout.register_bits // 8}")
    d = launcher.output(batch * layout.threads * layout.registers, word, name=f"d{number}")
    flags = ACCUMULATE * (c is not None) | NEGATE_A * negate_a | NEGATE_B * negate_b
    arguments: list[Buffer | np.number[Any]] = [*buffers, d]
    arguments += (
        [np.uint64(_descriptor_word()), np.uint32(steps), np.uint32(flags)] if warpgroup else [np.uint32(steps)]
    )
    launcher.launch(instruction.entry, (batch,), (instruction.threads,), arguments)
    return layout.unpacked(launcher.read(d), instruction.d_format.code_dtype)


def _checked(
    instruction: TensorCoreInstruction, a: ArrayLike, b: ArrayLike, c: ArrayLike | None
) -> tuple[Codes, Codes, Codes | None]:
    """Return the arrays of a call, or raise RefsimError that names the array that does not fit."""
    x, y = np.asarray(a), np.asarray(b)
    z = None if c is None else np.asarray(c)
    batch, k = (x.shape[0], x.shape[-1]) if x.ndim == 3 else (0, 0)
    if batch == 0 or k == 0 or k % instruction.k:
        rule = f"(batch, {instruction.m}, K) with K a multiple of {instruction.k}"
        raise RefsimError("bad-shape", f"a has shape {x.shape}", instruction.name, rule)
    m, n = instruction.m, instruction.n
    wanted = [("a", x, instruction.a_format, (batch, m, k)), ("b", y, instruction.b_format, (batch, n, k))]
    if z is not None:
        wanted.append(("c", z, instruction.d_format, (batch, m, n)))
    for name, array, format, shape in wanted:
        if array.shape != shape:
            raise RefsimError("bad-shape", f"{name} has shape {array.shape}, not {shape}", instruction.name)
        if array.dtype != format.code_dtype:
            what = f"{name} holds {array.dtype}, codes of {format} are {format.code_dtype}"
            rule = "codes are unsigned integers, values are floats"
            raise RefsimError("bad-dtype", what, instruction.name, rule, "view a float's bits")
    return x, y, z


def _by_step(operand: Codes, k: int) -> Codes:
    """Return (batch, rows, K) as (batch, steps, rows, k)."""
    batch, rows, length = operand.shape
    return operand.reshape(batch, rows, length // k, k).swapaxes(1, 2)


def _tiles(b: Codes) -> Codes:
    """Return B (batch, steps, N, k) as 32-bit words (batch, steps, N * 8) of core matrices without a swizzle."""
    batch, steps, n, _ = b.shape
    rows = np.ascontiguousarray(b).view(np.uint8).reshape(batch, steps, n // 8, 8, 2, 16)
    return np.ascontiguousarray(rows.swapaxes(3, 4)).view(np.uint32).reshape(batch, steps, -1)


@lru_cache(maxsize=1)
def _descriptor_word() -> int:
    """Return the matrix descriptor of such a tile at address 0."""
    return descriptor("wgmma-smem").encode(
        start_address=0, leading_byte_offset=CORE_BYTES, stride_byte_offset=2 * CORE_BYTES, swizzle="none"
    )
