"""The public call: the bits that a tensor core returns for D = A B^T + C."""

import warnings
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from refsim.evidence import Level
from refsim.formats import E4M3, ElementType, Format, element_named
from refsim.numerics.calls import Call, arguments_of, fitted, takes_arguments_of
from refsim.numerics.profiles import profile
from refsim.numerics.rows import Profile, Unit
from refsim.numerics.sparse import Codes, SparseCall, sparse_call, sparse_profile


def call_asked_for(
    a: ArrayLike,
    b: ArrayLike,
    c: ArrayLike | None = None,
    *,
    unit: Unit = "wgmma",
    a_format: str | ElementType | None = None,
    b_format: str | ElementType | None = None,
    d_format: str | ElementType = "f32",
    target: str = "sm_90a",
    a_scale: ArrayLike | None = None,
    b_scale: ArrayLike | None = None,
    scale_format: str | Format | None = None,
    k: int | None = None,
    negate_a: bool = False,
    negate_b: bool = False,
    metadata: ArrayLike | None = None,
) -> Call | SparseCall:
    """Return the call that the arguments of `mma` describe; an operand without a format is E4M3.

    With `metadata` the call is sparse, and its `k` counts stored products: half the instruction's K.
    """
    arguments = arguments_of(
        a,
        b,
        c,
        a_format=a_format,
        b_format=b_format,
        a_scale=a_scale,
        b_scale=b_scale,
        scale_format=scale_format,
        negate_a=negate_a,
        negate_b=negate_b,
        default=E4M3,
    )
    types = arguments.a_format, arguments.b_format, element_named(d_format)
    if metadata is not None:
        row = sparse_profile(target, unit, *types, k)
        return sparse_call(arguments, metadata, row, max(row.k) if k is None else int(k) // 2)
    row = profile(target, unit, *types, k)
    return fitted(arguments, row, max(row.k) if k is None else int(k))


@dataclass(frozen=True)
class ProductSpec:
    """Specify D = A B^T + C of one instruction: the element types of A, B and D, its M, N and K, and its unit.

    wgmma m64n8k32 of E4M3 is ProductSpec(E4M3, E4M3, F32, 64, 8, 32, "wgmma").
    """

    a_format: ElementType
    b_format: ElementType
    d_format: ElementType
    m: int
    n: int
    k: int
    unit: Unit

    def __hash__(self) -> int:
        return self._number

    @cached_property
    def _number(self) -> int:
        """Return the hash, computed once: it is used hundreds of thousands of times."""
        return hash((self.a_format, self.b_format, self.d_format, self.m, self.n, self.k, self.unit))

    @property
    def negates(self) -> bool:
        """Return whether the instruction can negate an operand."""
        return self.unit == "wgmma" and not self.d_format.is_integer

    def profile(self, target: str) -> Profile:
        """Return the profile of the instruction on a target."""
        return profile(target, self.unit, self.a_format, self.b_format, self.d_format, self.k)

    def codes(
        self, a: Codes, b: Codes, c: Codes | None, *, target: str = "sm_90a", row: Profile | None = None, **how: Any
    ) -> Codes:
        """Return D as codes of its format, given C as such codes: by `mma` on a target, or by a `row` of arithmetic.

        `how` are further arguments of `mma`: scales and their format, operands to negate, metadata.
        """
        kind = self.d_format.array_dtype
        assert kind is not None
        c = None if c is None else np.ascontiguousarray(c).view(kind)
        how |= {"a_format": self.a_format, "b_format": self.b_format}
        if row is None:
            call = call_asked_for(a, b, c, unit=self.unit, d_format=self.d_format, target=target, k=self.k, **how)
        else:
            call = fitted(arguments_of(a, b, c, **how), row, self.k)
        return call.result().view(self.d_format.code_dtype)


class UnverifiedProfileWarning(UserWarning):
    """Warn that the arithmetic of this chip is not published: the result is a placeholder, not the chip's bits."""


def warn_unverified(row: Profile) -> None:
    """Warn the caller's caller where no bit model of a profile is published."""
    if row.evidence.level is Level.UNVERIFIED:
        warnings.warn(f"{row.name}: {row.evidence}", UnverifiedProfileWarning, stacklevel=4)


@takes_arguments_of(call_asked_for)
def mma(call: Call | SparseCall) -> NDArray[Any]:
    """Return D = A B^T + C with exactly the bits of a tensor core; K is chained ascending as instructions of that K do.

    The defaults are Hopper's FP8 wgmma: `target` "sm_90a", `unit` "wgmma", operands e4m3, D f32.

      a (..., M, K), b (..., N, K)   codes, one unsigned integer per element: uint8; uint16 for f16 and bf16; uint32 for
                                     tf32 (an f32 pattern whose low 13 bits are ignored) and f32; uint64 for f64; uint8 for
                                     s8 and u8, two's complement. Arrays of ml_dtypes know their format.
      c (..., M, N)                  float32, float16, float64 or int32 as `d_format` ("s32" for integers) says, or None
                                     for a zero. The result has this dtype; leading dimensions broadcast.
      unit                           "mma.sync", "wgmma", "tcgen05.f16", ".tf32", ".f8f6f4", ".i8", ".mxf8f6f4", ".mxf4",
                                     ".mxf4nvf4", "mma.sync.mxf8f6f4", ".mxf4", ".mxf4nvf4", "mfma", "mfma.1k" (bf16_1k on
                                     gfx90a), "mfma.scale"; `refsim numerics list` prints the units of a target.
      k                              the K of one instruction, None for the largest of this unit and type
      a_scale (..., M, K // block)   codes of `scale_format` ("e8m0", "ue4m3"); b_scale (..., N, K // block) likewise
      negate_a, negate_b             turn the operand's sign, where the instruction has this flag
      metadata                       selects a sparse A (mma.sp, wgmma.mma_async.sp, tcgen05.mma.sp)

    With `metadata`, `a` (..., M, K / 2) has the stored codes, and `metadata`, of equal shape, their positions in each
    group of four (tf32: two; tcgen05.mxf4: two pairs of eight), as `compress` returns both. b is whole, and `k` is the
    instruction's own; scales belong to blocks of stored codes. Elements of B that meet no stored code are ignored, NaN
    included.
    mma(np.full((1, 32), 0x38, np.uint8), np.full((1, 32), 0x38, np.uint8)) is [[32.0]].
    On Hopper's FP8 wgmma 2^13 + 2^-1 is 2^13: C and products keep 13 bits below the largest exponent.
    Raises RefsimError for unknown combinations, with the known ones, and for arguments that do not fit. Warns with
    UnverifiedProfileWarning where no bit model is published. Source: the profile's, `numerics.profile(...)`.
    """
    warn_unverified(call.row)
    return call.result()
