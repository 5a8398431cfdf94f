"""The public call: the bits that a tensor core returns for D = A B^T + C."""

import warnings
from typing import Any

from numpy.typing import NDArray

from refsim.evidence import Level
from refsim.numerics.asked import call_asked_for
from refsim.numerics.calls import Call, takes_arguments_of
from refsim.numerics.sparse import SparseCall


class UnverifiedProfileWarning(UserWarning):
    """Warn that the arithmetic of this chip is not published: the result is a placeholder, not the chip's bits."""


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
    if call.row.evidence.level is Level.UNVERIFIED:
        warnings.warn(f"{call.row.name}: {call.row.evidence}", UnverifiedProfileWarning, stacklevel=3)
    return call.result()
