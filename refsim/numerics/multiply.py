"""The public call: the bits that a tensor core returns for D = A B^T + C."""

import math
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from refsim.errors import RefsimError
from refsim.evidence import Level
from refsim.formats import E4M3, UE4M3, ElementType, Format, Integer, element_named, float_named
from refsim.numerics.dot.chains import Operands
from refsim.numerics.fast.product import matrix_product
from refsim.numerics.profiles import profile
from refsim.numerics.rows import Profile
from refsim.typed_arrays import format_of, is_typed, with_format


class UnverifiedProfileWarning(UserWarning):
    """The arithmetic of this chip is not published: the result is a placeholder, not its bits."""


def mma(
    a: ArrayLike,
    b: ArrayLike,
    c: ArrayLike | None,
    *,
    unit: str = "wgmma",
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
) -> NDArray[Any]:
    """D = A B^T + C with exactly the bits of a tensor core; K is chained ascending as the instructions of that K do.

    `a` (..., M, K) and `b` (..., N, K): codes, one unsigned integer per element (uint8; uint16 for f16 and bf16; uint32
    for tf32, the f32 word whose low 13 bits are ignored, and f32; uint64 for f64; uint8 for s8 and u8, two's
    complement), or arrays of ml_dtypes, which know their format; where nothing says it, it is e4m3. `c` (..., M, N):
    float32, float16, float64 or int32 as `d_format` ("s32" for integers) says, or None for a zero. The result has that
    dtype; leading dimensions broadcast. `unit`: "mma.sync", "wgmma", "tcgen05.f16", ".tf32", ".f8f6f4", ".i8",
    ".mxf8f6f4", ".mxf4", ".mxf4nvf4", "mma.sync.mxf8f6f4", ".mxf4", ".mxf4nvf4", "mfma", and "mfma.1k" (bf16_1k on
    gfx90a). `k`: the K of one instruction, None for the largest of that unit and type.
    `a_scale` (..., M, K // block) and `b_scale` (..., N, K // block): codes of `scale_format` ("e8m0", "ue4m3").
    `negate_a`, `negate_b`: the operand's sign turned, where the instruction has that flag.
    mma(np.full((1, 32), 0x38, np.uint8), np.full((1, 32), 0x38, np.uint8), None) is [[32.0]].
    On Hopper's FP8 wgmma 2^13 + 2^-1 is 2^13: C and products keep 13 bits below the largest exponent.
    Raises RefsimError for unknown combinations, with the known ones, and for arguments that do not fit. Warns with
    UnverifiedProfileWarning where no bit model is published. Source: the profile's row, `numerics.profile(...)`.
    """
    (a, a_format), (b, b_format) = named(a, a_format, "a", E4M3), named(b, b_format, "b", E4M3)
    scales = named_scales(a_scale, b_scale, scale_format)
    problem = checked(a, b, c, unit, (a_format, b_format, d_format), target, scales, k, (negate_a, negate_b))
    row = problem.row
    if row.evidence.level is Level.UNVERIFIED:
        warnings.warn(f"{row.name}: {row.evidence}", UnverifiedProfileWarning, stacklevel=2)
    codes = matrix_product(problem.operands, problem.c, row, problem.k)
    return codes.reshape(problem.shape).view(row.d_dtype)


def named(
    codes: ArrayLike, format: str | ElementType | None, what: str, default: Format | None = None
) -> tuple[ArrayLike, ElementType]:
    """Codes and their format: the one that is named, that an array of ml_dtypes knows, or the default."""
    given = None if format is None else element_named(format)
    if isinstance(codes, np.ndarray) and is_typed(codes.dtype):
        if isinstance(given, Integer):
            raise RefsimError("format-mismatch", f"{what} are {codes.dtype.name}, the format asked for is {given}")
        return with_format(codes, given, what)
    found = default if given is None else given
    if found is None:
        raise RefsimError("format-needed", f"{what} does not say its format", help=f"pass {what}_format=")
    return codes, found


def named_scales(
    a_scale: ArrayLike | None, b_scale: ArrayLike | None, format: str | Format | None
) -> tuple[ArrayLike | None, ArrayLike | None, str | Format | None]:
    """Scales and their format, which an array of ml_dtypes knows."""
    found: dict[str, ArrayLike | None] = {"a_scale": a_scale, "b_scale": b_scale}
    for what, scale in found.items():
        if isinstance(scale, np.ndarray) and is_typed(scale.dtype):
            own = UE4M3 if format_of(scale.dtype) == E4M3 else None  # no scale has a sign
            found[what], format = with_format(scale, format or own, what)
    return found["a_scale"], found["b_scale"], format


@dataclass(frozen=True)
class Problem:
    """The arguments of a call, checked: operands and codes of C with one leading dimension, and the result's shape."""

    operands: Operands
    c: NDArray[Any]
    row: Profile
    k: int
    shape: tuple[int, ...]


def checked(
    a: ArrayLike,
    b: ArrayLike,
    c: ArrayLike | None,
    unit: str,
    formats: tuple[str | ElementType, str | ElementType, str | ElementType],
    target: str,
    scales: tuple[ArrayLike | None, ArrayLike | None, str | Format | None],
    k: int | None,
    negate: tuple[bool, bool] = (False, False),
) -> Problem:
    """The problem that the arguments of `mma` describe; raises RefsimError where they describe none."""
    types = [element_named(name) for name in formats]
    row = profile(target, unit, types[0], types[1], types[2], k)
    return fitted(row, a, b, c, (types[0], types[1]), scales, max(row.k) if k is None else int(k), negate)


def fitted(
    row: Profile,
    a: ArrayLike,
    b: ArrayLike,
    c: ArrayLike | None,
    formats: tuple[ElementType, ElementType],
    scales: tuple[ArrayLike | None, ArrayLike | None, str | Format | None],
    k: int,
    negate: tuple[bool, bool] = (False, False),
) -> Problem:
    """The problem of a given row, its arrays checked."""
    x = _operand(a, formats[0], "a", row, negate[0])
    y = _operand(b, formats[1], "b", row, negate[1])
    _check_k(x, y, k, row)
    factors, scale_format = _scales(*scales, row, x.shape[-1])
    z = _accumulator(c, row)
    batch = _batch(x, y, z, factors)
    shape = (*batch, x.shape[-2], y.shape[-2])
    flat = [_flat(array, batch) for array in (x, y, *factors)]
    operands = Operands(flat[0], flat[1], *formats, flat[2], flat[3], scale_format)
    codes = np.zeros(shape, _code_dtype(row)) if z is None else _broadcast(z, shape)
    return Problem(operands, _flat(codes, batch), row, k, shape)


def _array(given: ArrayLike, which: str, row: Profile) -> NDArray[Any]:
    try:
        return np.asarray(given)
    except ValueError:
        raise RefsimError("operand-shape", f"the rows of {which} differ in length", row.name) from None


def _operand(codes: ArrayLike, format: ElementType, which: str, row: Profile, negate: bool) -> NDArray[Any]:
    """The codes of an operand, checked, with the sign turned where that was asked for."""
    array = _array(codes, which, row)
    dtype = format.code_dtype
    if array.dtype != dtype:
        raise RefsimError(
            "code-type",
            f"{which} holds {array.dtype}, codes of {format} are {dtype}",
            row.name,
            "codes are unsigned integers, values are floats",
            f"refsim.encode(values, {format.name!r}), or view a float's bits",
        )
    if array.ndim < 2:
        raise RefsimError("operand-shape", f"{which} has shape {array.shape}", row.name, "(..., rows, K)")
    if format.bits < 8 and array.size and int(array.max()) >= format.code_limit:
        raise RefsimError(
            "illegal-code",
            f"{which} holds {int(array.max()):#x}",
            row.name,
            f"{format} has codes below {format.code_limit:#x}",
            "one code per element; unpack packed bytes with refsim.unpack",
        )
    if not isinstance(negate, (bool, np.bool_)):
        raise RefsimError("negate", f"negate_{which} is {negate!r}", row.name, "a flag is True or False")
    if not negate:
        return array
    if not row.negates or format.is_integer:
        raise RefsimError(
            "negate", f"negate_{which} is not offered by {row.unit}", row.name, "the instruction has no such flag"
        )
    negated: NDArray[Any] = array ^ dtype.type(format.sign_mask)
    return negated


def _check_k(a: NDArray[Any], b: NDArray[Any], k: int, row: Profile) -> None:
    if a.shape[-1] != b.shape[-1]:
        raise RefsimError(
            "operand-shape", f"a has K = {a.shape[-1]}, b has K = {b.shape[-1]}", row.name, "(..., rows, K)"
        )
    if a.shape[-1] == 0 or a.shape[-1] % k:
        raise RefsimError(
            "operand-k",
            f"K = {a.shape[-1]} is not a positive multiple of the instruction's {k}",
            row.name,
            help="pad a and b with zeros: code 0 is +0 in every operand format",
        )


def _scales(
    a_scale: ArrayLike | None, b_scale: ArrayLike | None, scale_format: str | Format | None, row: Profile, length: int
) -> tuple[tuple[NDArray[Any] | None, NDArray[Any] | None], Format | None]:
    """The scale codes, with the bit that UE4M3 ignores cleared, and their format."""
    if not row.scales:
        if a_scale is not None or b_scale is not None or scale_format is not None:
            raise RefsimError(
                "scales", f"{row.unit} takes no scales", row.name, help="leave out a_scale, b_scale, scale_format"
            )
        return (None, None), None
    known = ", ".join(f"{name} in blocks of {block}" for name, block in row.scales)
    if a_scale is None or b_scale is None or scale_format is None:
        raise RefsimError(
            "scales", f"{row.unit} needs a_scale, b_scale and scale_format", row.name, help=f"known: {known}"
        )
    format = element_named(scale_format)
    arrays = [_array(scale, which, row) for scale, which in ((a_scale, "a_scale"), (b_scale, "b_scale"))]
    blocks = [length // array.shape[-1] if array.ndim >= 2 and array.shape[-1] else 0 for array in arrays]
    fits = all(
        (format, block) in row.scales and array.shape[-1] * block == length
        for array, block in zip(arrays, blocks, strict=True)
    )
    if not fits or blocks[0] != blocks[1]:
        raise RefsimError(
            "scales",
            f"{format} scales of shapes {arrays[0].shape} and {arrays[1].shape} do not fit K = {length}",
            row.name,
            "(..., rows, K // block)",
            f"known: {known}",
        )
    if any(array.dtype != np.uint8 for array in arrays):
        raise RefsimError(
            "code-type", f"scales hold {arrays[0].dtype} and {arrays[1].dtype}, codes are uint8", row.name
        )
    found = float_named(format)
    mask = np.uint8(found.code_limit - 1)
    first, second = (array if found.bits == 8 else array & mask for array in arrays)
    return (first, second), found


def _code_dtype(row: Profile) -> np.dtype[Any]:
    return row.d_dtype if row.d_format.is_integer else row.d_format.code_dtype


def _accumulator(c: ArrayLike | None, row: Profile) -> NDArray[Any] | None:
    """The codes of C, or its integers."""
    if c is None:
        return None
    array = _array(c, "c", row)
    wanted = row.d_dtype
    if array.dtype != wanted:
        raise RefsimError("accumulator-type", f"c is {array.dtype}, {row.d_format} is {wanted}", row.name)
    if array.ndim < 2:
        raise RefsimError("operand-shape", f"c has shape {array.shape}", row.name, "(..., M, N)")
    return np.ascontiguousarray(array).view(_code_dtype(row))


def _batch(
    a: NDArray[Any], b: NDArray[Any], c: NDArray[Any] | None, scales: tuple[NDArray[Any] | None, NDArray[Any] | None]
) -> tuple[int, ...]:
    """The leading dimensions of the result; M and N of C and of the scales must be those of A and B."""
    m, n = a.shape[-2], b.shape[-2]
    rows = [(a, m, "a"), (b, n, "b"), (scales[0], m, "a_scale"), (scales[1], n, "b_scale"), (c, m, "c")]
    present = [(array, count, name) for array, count, name in rows if array is not None]
    for array, count, name in present:
        if array.shape[-2] != count or (name == "c" and array.shape[-1] != n):
            raise RefsimError(
                "operand-shape", f"{name} has shape {array.shape}", rule=f"M = {m} rows of a, N = {n} rows of b"
            )
    try:
        return np.broadcast_shapes(*(array.shape[:-2] for array, _, _ in present))
    except ValueError:
        shapes = ", ".join(f"{name} {array.shape}" for array, _, name in present)
        raise RefsimError("operand-shape", f"leading dimensions do not broadcast: {shapes}") from None


def _broadcast(array: NDArray[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    return np.ascontiguousarray(array if array.shape == shape else np.broadcast_to(array, shape))


def _flat(array: NDArray[Any] | None, batch: tuple[int, ...]) -> Any:
    """The array with its leading dimensions broadcast and made one."""
    if array is None:
        return None
    return _broadcast(array, (*batch, *array.shape[-2:])).reshape(math.prod(batch), *array.shape[-2:])
