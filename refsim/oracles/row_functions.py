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

from refsim.conversions import decode, round_bits
from refsim.errors import RefsimError, check_named
from refsim.formats import BF16, F16, F32, Format
from refsim.integers import array_of
from refsim.mufu.instructions import approximate, divided
from refsim.numerics import ieee
from refsim.oracle_calls import reported
from refsim.typed_arrays import codes_with_format, typed

Floats = NDArray[np.float32]
Codes = NDArray[Any]
BLOCK_THREADS, LANES = 128, 32
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
    factor = np.asarray(scale, np.float32)
    top = _over_block(
        ieee.maximum, _columns(values, -np.inf), np.full((len(values), BLOCK_THREADS), -np.inf, np.float32)
    )
    base = ieee.mul(np.where(np.isneginf(top), np.float32(0), top), factor)
    weights = _ex2(ieee.fma(values, factor, ieee.negate(base)[:, None]), ftz=True)
    total = _over_block(ieee.add, _columns(weights, 0), np.zeros((len(values), BLOCK_THREADS), np.float32))[:, None]
    if row is F32:
        normed = divided(*np.broadcast_arrays(_words(weights), _words(total)), ftz=False, full=True).view(np.float32)
    else:
        normed = ieee.mul(weights, approximate("rcp", _words(total), ftz=True).view(np.float32))
    return typed(_codes(np.where(total == 0, np.float32(0), normed), row), row, dtype)


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
    total: Floats = np.zeros((len(values), BLOCK_THREADS), np.float32)
    for each in _columns(values, 0):
        total = ieee.fma(each, each, total)
    squares = _over_threads(ieee.add, total)
    count = np.full_like(squares, values.shape[1])
    mean = divided(_words(squares), _words(count), ftz=False, full=True).view(np.float32)
    inverse = approximate("rsqrt", _words(ieee.add(mean, np.asarray(eps, np.float32))), ftz=False).view(np.float32)
    normed = ieee.mul(ieee.mul(values, inverse[:, None]), factors)
    if gate is not None:
        _, gates = _values("gate", gate, row)
        if gates.shape != values.shape:
            raise RefsimError("bad-shape", f"gate has shape {gates.shape}, x {values.shape}")
        normed = ieee.mul(normed, _silu(gates))
    return typed(_codes(normed, row), row, dtype)


def _silu(z: Floats) -> Floats:
    """Return z / (1 + e^-z) in the kernel's operations."""
    below = ieee.add(np.ones_like(z), _ex2(ieee.mul(z, ieee.negate(LOG2_E)), ftz=False))
    return divided(_words(z), _words(below), ftz=False, full=True).view(np.float32)


def _ex2(x: Floats, *, ftz: bool) -> Floats:
    return approximate("ex2", _words(x), ftz=ftz).view(np.float32)


def _words(x: Floats) -> NDArray[np.uint32]:
    return np.ascontiguousarray(x).view(np.uint32)


def _values(name: str, codes: ArrayLike, format: str | Format | None) -> tuple[Format, Floats]:
    """Return the format and the exact float32 values of a matrix of codes."""
    array, row = codes_with_format(name, codes, format, BF16)
    check_named("format of a row", row.name, [each.name for each in ROW_FORMATS])
    if array.ndim != 2 or array.shape[1] == 0:
        raise RefsimError("bad-shape", f"{name} has shape {array.shape}", rule="(rows, columns), a column at least")
    return row, decode(array, row, np.float32)


def _codes(values: Floats, row: Format) -> Codes:
    return _words(values) if row is F32 else round_bits(values, row).astype(row.code_dtype)


def _columns(values: Floats, beyond: float) -> NDArray[np.float32]:
    """Return the columns of each thread in turns, (turns, rows, 128), with `beyond` where a thread has no column."""
    rows, columns = values.shape
    whole = np.full((rows, -(-columns // BLOCK_THREADS) * BLOCK_THREADS), beyond, np.float32)
    whole[:, :columns] = values
    return np.ascontiguousarray(whole.reshape(rows, -1, BLOCK_THREADS).swapaxes(0, 1))


def _over_block(both: Any, turns: NDArray[np.float32], start: Floats) -> Floats:
    """Reduce all columns of a row by `both`, from `start` (rows, 128), to (rows,)."""
    for each in turns:
        start = both(start, each)
    return _over_threads(both, start)


def _over_threads(both: Any, each: Floats) -> Floats:
    """Reduce the threads' values (rows, 128) to (rows,), first over lanes, then over warps."""
    lanes = each.reshape(len(each), -1, LANES)
    while lanes.shape[2] > 1:
        half = lanes.shape[2] // 2
        lanes = both(lanes[:, :, :half], lanes[:, :, half:])
    warps = lanes[:, :, 0]
    total: Floats = warps[:, 0]
    for warp in range(1, warps.shape[1]):
        total = both(total, warps[:, warp])
    return total
