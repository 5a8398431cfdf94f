"""Softmax and RMSNorm of rows, by the instructions that Hopper's kernels use.

The order of operations is the contract, in float32, rounded to nearest even each time. 128 threads process a row:
thread t has columns t, t + 128, ... in this order; 32 lanes are reduced at distances 16, 8, 4, 2, 1; four warps as ((w0
+ w1) + w2) + w3.

    softmax      m = max x, NaN ignored, 0 where m is -infinity; p = ex2(fma(x, scale, -fl(m * scale))); l = sum of p
                 y = fl(p * rcp(l)) for bf16 and f16, div.full(p, l) for f32, +0 where l is 0
    rms_norm     s = sum by fma(x, x, s); r = rsqrt(fl(div.full(s, columns) + eps)); y = fl(fl(x * r) * w)
    with a gate  y = fl(y * div.full(z, fl(1 + ex2(fl(z * -log2(e))))))

ex2 and rcp of softmax are `.approx.ftz`, ex2 and rsqrt of rms_norm `.approx`: the bits of `refsim.mufu`, recorded on
sm_90.
"""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from refsim.computations.norms import Norm
from refsim.computations.row_functions import RowFunction
from refsim.computations.softmax import LOG2_E_DOUBLE, Softmax
from refsim.conversions import decode, round_bits
from refsim.errors import RefsimError, check_named
from refsim.formats import BF16, F16, F32, Format
from refsim.integers import array_of
from refsim.oracle_calls import reported
from refsim.typed_arrays import codes_with_format, typed

ROW_FORMATS = (BF16, F16, F32)
LOG2_E = np.array(1.4426950408889634, np.float32)


@reported("softmax")
def softmax(
    x: ArrayLike, scale: float = float(LOG2_E), *, format: str | Format | None = None, dtype: DTypeLike | None = None
) -> NDArray[Any]:
    """Return the codes of softmax over each row of codes `x` (rows, columns), 2^(scale * (x - max)) over their sum.

    `scale` is rounded to float32; log2(e), the default, gives e^x. `format`: of x and of the result: bf16 (the
    default), f16 or f32; an ml_dtypes dtype of x gives it too. dtype="ml_dtypes" returns values of that type. A row of
    -infinity becomes +0, a row with NaN or +infinity NaN. softmax(np.uint16([[0x3f80, 0x3f80]])) is [[0x3f00, 0x3f00]]:
    halves. Raises RefsimError for other shapes and formats. Source: PTX ISA, ex2, rcp and div; the order of operations
    is from `gpu/kernels/row_functions.cu`.
    """
    row, values = _values("x", x, format)
    factor = float(np.asarray(scale, np.float32))  # its product with 1 / log2(e) is undone in float64 and rounded again
    return _codes(Softmax(values, row, row, factor / LOG2_E_DOUBLE), dtype)


@reported("RMSNorm")
def rms_norm(
    x: ArrayLike,
    w: ArrayLike,
    eps: float = 1e-6,
    *,
    gate: ArrayLike | None = None,
    format: str | Format | None = None,
    dtype: DTypeLike | None = None,
) -> NDArray[Any]:
    """Return the codes of x / sqrt(mean(x^2) + eps) * w for each row of codes `x` (rows, columns), `w` (columns).

    `eps` is rounded to float32. With `gate` (rows, columns) the result is multiplied by silu(gate). `format`: of the
    inputs and of the result: bf16 (the default), f16 or f32; an ml_dtypes dtype of x gives it too. dtype="ml_dtypes"
    returns values of that type. rms_norm(np.uint16([[0x4000, 0x4000]]), np.uint16([0x3f80, 0x4000]), 0) is [[0x3f80,
    0x4000]]: 2 / 2, times 1 and 2. Raises RefsimError for other shapes and formats. Source: PTX ISA, rsqrt, ex2 and
    div; the order of operations is from `gpu/kernels/row_functions.cu`.
    """
    row, values = _values("x", x, format)
    _, factors = _values("w", array_of("w", w)[None], row)
    if factors.shape[1] != values.shape[1]:
        raise RefsimError("bad-shape", f"w has {factors.shape[1]} elements, x {values.shape[1]} columns")
    gates = None if gate is None else _values("gate", gate, row)[1]
    if gates is not None and gates.shape != values.shape:
        raise RefsimError("bad-shape", f"gate has shape {gates.shape}, x {values.shape}")
    return _codes(Norm(values, row, row, eps, factors[0], gate=gates), dtype)


def _values(name: str, codes: ArrayLike, format: str | Format | None) -> tuple[Format, NDArray[np.float32]]:
    """Return the format and the exact float32 values of a matrix of codes."""
    array, row = codes_with_format(name, codes, format, BF16)
    check_named("format of a row", row.name, [each.name for each in ROW_FORMATS])
    if array.ndim != 2 or array.shape[1] == 0:
        raise RefsimError("bad-shape", f"{name} has shape {array.shape}", rule="(rows, columns), a column at least")
    return row, decode(array, row, np.float32)


def _codes(function: RowFunction, dtype: DTypeLike | None) -> NDArray[Any]:
    """Return what a function of rows writes by its usual plan."""
    with np.errstate(all="ignore"):
        values = function.value(function.usual, slice(None), ())
    row = function.format
    return typed(round_bits(values, row).astype(row.code_dtype, copy=False), row, dtype)
