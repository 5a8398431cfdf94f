"""A kernel of Triton that casts float32 to eight bits."""

import triton
import triton.language as tl


@triton.jit
def cast(x, y, TO: tl.constexpr, ROUNDING: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    codes = tl.load(x + at).to(TO, fp_downcast_rounding=ROUNDING)
    tl.store(y + at, codes.to(tl.int8, bitcast=True))
