"""The arguments of a product: the caller's arrays and formats, and the checked call that `fitted` makes of them."""

import functools
import inspect
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import FunctionType
from typing import Any, ParamSpec, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from refsim.errors import RefsimError
from refsim.formats import E4M3, UE4M3, ElementType, Format, Integer, element_named, float_named
from refsim.integers import read_as_array
from refsim.numerics.dot.chains import Operands
from refsim.numerics.fast.product import matrix_product
from refsim.numerics.rows import Profile
from refsim.typed_arrays import disagreeing, format_of, integer_held, is_typed, native, with_format, words

Asked = ParamSpec("Asked")
Made = TypeVar("Made")
Found = TypeVar("Found")


@dataclass(frozen=True)
class Arguments:
    """Describe a caller's arguments, with the formats of A and B known; the arrays are not checked yet."""

    a: ArrayLike
    b: ArrayLike
    c: ArrayLike | None
    a_format: ElementType
    b_format: ElementType
    a_scale: ArrayLike | None
    b_scale: ArrayLike | None
    scale_format: str | Format | None
    negate_a: bool
    negate_b: bool


@dataclass(frozen=True, kw_only=True)
class Call:
    """Describe a checked product to be computed by a profile.

    Leading dimensions are flattened to one; `shape` is the shape of the result. `c` are codes, or integers where the
    result is an integer; `k` is the K of one instruction.
    """

    row: Profile
    k: int
    operands: Operands
    c: NDArray[Any]
    shape: tuple[int, ...]

    def result(self) -> NDArray[Any]:
        """Return D, as floats or integers."""
        codes = matrix_product(self.operands, self.c, self.row, self.k)
        return codes.reshape(self.shape).view(self.row.d_dtype)

    def parts(self) -> "Iterator[Call]":
        """Yield calls whose results, concatenated along M, are the result of this call: the call itself."""
        yield self


def arguments_of(
    a: ArrayLike,
    b: ArrayLike,
    c: ArrayLike | None = None,
    *,
    a_format: str | ElementType | None = None,
    b_format: str | ElementType | None = None,
    a_scale: ArrayLike | None = None,
    b_scale: ArrayLike | None = None,
    scale_format: str | Format | None = None,
    negate_a: bool = False,
    negate_b: bool = False,
    default: Format | None = None,
) -> Arguments:
    """Return the arguments of a caller; `default` is the format of an operand without one, None: refuse it."""
    a, a_row = codes_and_format(a, a_format, "a", default)
    b, b_row = codes_and_format(b, b_format, "b", default)
    a_scale, scale_format = _with_scale_format(a_scale, scale_format, "a_scale")
    b_scale, scale_format = _with_scale_format(b_scale, scale_format, "b_scale")
    return Arguments(a, b, c, a_row, b_row, a_scale, b_scale, scale_format, negate_a, negate_b)


def takes_arguments_of(asked: Callable[Asked, Made]) -> Callable[[Callable[[Made], Found]], Callable[Asked, Found]]:
    """Make a function of a call accept the arguments of `asked` instead, and show its signature."""

    def decorated(meaning: Callable[[Made], Found]) -> Callable[Asked, Found]:
        made: Callable[Asked, Made] = _named_as(meaning, asked)

        def public(*args: Asked.args, **kwargs: Asked.kwargs) -> Found:
            return meaning(made(*args, **kwargs))

        shown: Any = functools.wraps(meaning)(public)
        found = inspect.signature(meaning).return_annotation
        shown.__signature__ = inspect.signature(asked).replace(return_annotation=found)
        shown.__annotations__ = {**asked.__annotations__, "return": found}
        return public

    return decorated


def _named_as(named: Any, function: Any) -> Any:
    """Return `function` under the name of `named`, which Python shows in errors about arguments."""
    twin = FunctionType(function.__code__, function.__globals__, named.__name__, function.__defaults__)
    twin.__kwdefaults__, twin.__qualname__ = function.__kwdefaults__, named.__qualname__
    return twin


def fitted(arguments: Arguments, row: Profile, k: int) -> Call:
    """Return the call of a given profile, with instructions of this K; raise if the arguments do not fit."""
    x = _operand(arguments.a, arguments.a_format, "a", row, arguments.negate_a)
    y = _operand(arguments.b, arguments.b_format, "b", row, arguments.negate_b)
    _check_k(x, y, k, row)
    a_scale, b_scale, scale_format = _scales(arguments, row, x.shape[-1])
    z = _accumulator(arguments.c, row)
    batch = _batch(x, y, z, (a_scale, b_scale))
    shape = (*batch, x.shape[-2], y.shape[-2])
    scales = [None if scale is None else _flat(scale, batch) for scale in (a_scale, b_scale)]
    sides = _flat(x, batch), _flat(y, batch), arguments.a_format, arguments.b_format
    operands = Operands(*sides, scales[0], scales[1], scale_format)
    codes = np.zeros(shape, _code_dtype(row)) if z is None else _broadcast(z, shape)
    return Call(row=row, k=k, operands=operands, c=_flat(codes, batch), shape=shape)


# ---- formats ---------------------------------------------------------------------------------------------------------


def codes_and_format(
    codes: ArrayLike, format: str | ElementType | None, what: str, default: Format | None
) -> tuple[ArrayLike, ElementType]:
    """Return codes and their format: the format given, the ml_dtypes type of the array, or the default."""
    asked = None if format is None else element_named(format)
    if isinstance(codes, np.ndarray) and is_typed(codes.dtype):
        own = integer_held(codes.dtype)
        if own is not None and asked in (None, own):
            return words(codes), own
        if own is not None or isinstance(asked, Integer):
            raise disagreeing(codes.dtype, asked, what)
        return with_format(codes, asked, what)
    found = default if asked is None else asked
    if found is None:
        raise RefsimError("format-needed", f"{what} does not say its format", help=f"pass {what}_format=")
    return codes, found


def _with_scale_format(
    scale: ArrayLike | None, format: str | Format | None, what: str
) -> tuple[ArrayLike | None, str | Format | None]:
    """Return scales and their format, which an array of ml_dtypes knows."""
    if not (isinstance(scale, np.ndarray) and is_typed(scale.dtype)):
        return scale, format
    own = UE4M3 if format_of(scale.dtype) == E4M3 else None  # no scale has a sign
    return with_format(scale, format or own, what)


# ---- arrays ----------------------------------------------------------------------------------------------------------


def _array(given: ArrayLike, which: str, row: Profile) -> NDArray[Any]:
    try:
        return native(read_as_array(which, given))
    except ValueError:
        raise RefsimError("bad-shape", f"the rows of {which} differ in length", row.name) from None


def _operand(codes: ArrayLike, format: ElementType, which: str, row: Profile, negate: bool) -> NDArray[Any]:
    """Return the codes of an operand, checked, with their sign turned if `negate`."""
    array = _array(codes, which, row)
    dtype = format.code_dtype
    if array.dtype != dtype:
        what = f"{which} holds {array.dtype}, codes of {format} are {dtype}"
        help = f"refsim.encode(values, {format.name!r}), or view a float's bits"
        raise RefsimError("bad-dtype", what, row.name, "codes are unsigned integers, values are floats", help)
    if array.ndim < 2:
        raise RefsimError("bad-shape", f"{which} has shape {array.shape}", row.name, "(..., rows, K)")
    if format.bits < 8 and array.size and int(array.max()) >= format.code_limit:
        what = f"{which} holds {int(array.max()):#x}"
        help = "one code per element; unpack packed bytes with refsim.unpack"
        raise RefsimError("out-of-range", what, row.name, f"{format} has codes below {format.code_limit:#x}", help)
    if not isinstance(negate, (bool, np.bool_)):
        raise RefsimError("bad-modifier", f"negate_{which} is {negate!r}", row.name, "a flag is True or False")
    if not negate:
        return array
    if not row.negates or format.is_integer:
        what = f"negate_{which} is not offered by {row.unit}"
        raise RefsimError("bad-modifier", what, row.name, "the instruction has no such flag")
    return np.asarray(array ^ dtype.type(format.sign_mask))


def _check_k(a: NDArray[Any], b: NDArray[Any], k: int, row: Profile) -> None:
    if a.shape[-1] != b.shape[-1]:
        raise RefsimError("bad-shape", f"a has K = {a.shape[-1]}, b has K = {b.shape[-1]}", row.name, "(..., rows, K)")
    if a.shape[-1] == 0 or a.shape[-1] % k:
        what = f"K = {a.shape[-1]} is not a positive multiple of the instruction's {k}"
        help = "pad a and b with zeros: code 0 is +0 in every operand format"
        raise RefsimError("bad-shape", what, row.name, help=help)


def _scales(
    arguments: Arguments, row: Profile, length: int
) -> tuple[NDArray[Any] | None, NDArray[Any] | None, Format | None]:
    """Return the scale codes of A and of B, with the bit that UE4M3 ignores cleared, and their format."""
    a_scale, b_scale, scale_format = arguments.a_scale, arguments.b_scale, arguments.scale_format
    if not row.scales:
        if a_scale is not None or b_scale is not None or scale_format is not None:
            what = f"{row.unit} takes no scales"
            raise RefsimError("bad-scale", what, row.name, help="leave out a_scale, b_scale, scale_format")
        return None, None, None
    known = ", ".join(f"{name} in blocks of {block}" for name, block in row.scales)
    if a_scale is None or b_scale is None or scale_format is None:
        what = f"{row.unit} needs a_scale, b_scale and scale_format"
        raise RefsimError("bad-scale", what, row.name, help=f"known: {known}")
    format = element_named(scale_format)
    arrays = [_array(scale, which, row) for scale, which in ((a_scale, "a_scale"), (b_scale, "b_scale"))]
    blocks = [length // array.shape[-1] if array.ndim >= 2 and array.shape[-1] else 0 for array in arrays]
    fits = all(
        (format, block) in row.scales and array.shape[-1] * block == length
        for array, block in zip(arrays, blocks, strict=True)
    )
    if not fits or blocks[0] != blocks[1]:
        what = f"{format} scales of shapes {arrays[0].shape} and {arrays[1].shape} do not fit K = {length}"
        raise RefsimError("bad-scale", what, row.name, "(..., rows, K // block)", f"known: {known}")
    if any(array.dtype != np.uint8 for array in arrays):
        what = f"scales hold {arrays[0].dtype} and {arrays[1].dtype}, codes are uint8"
        raise RefsimError("bad-dtype", what, row.name)
    found = float_named(format)
    mask = np.uint8(found.code_limit - 1)
    first, second = (array if found.bits == 8 else array & mask for array in arrays)
    return first, second, found


def _code_dtype(row: Profile) -> np.dtype[Any]:
    return row.d_dtype if row.d_format.is_integer else row.d_format.code_dtype


def _accumulator(c: ArrayLike | None, row: Profile) -> NDArray[Any] | None:
    """Return the codes of C, or its integers; None without C."""
    if c is None:
        return None
    array = _array(c, "c", row)
    wanted = row.d_dtype
    if array.dtype != wanted:
        raise RefsimError("bad-dtype", f"c is {array.dtype}, {row.d_format} is {wanted}", row.name)
    if array.ndim < 2:
        raise RefsimError("bad-shape", f"c has shape {array.shape}", row.name, "(..., M, N)")
    return np.ascontiguousarray(array).view(_code_dtype(row))


def _batch(
    a: NDArray[Any], b: NDArray[Any], c: NDArray[Any] | None, scales: tuple[NDArray[Any] | None, NDArray[Any] | None]
) -> tuple[int, ...]:
    """Return the leading dimensions of the result; raise if C or scales disagree with M and N of A and B."""
    m, n = a.shape[-2], b.shape[-2]
    rows = [(a, m, "a"), (b, n, "b"), (scales[0], m, "a_scale"), (scales[1], n, "b_scale"), (c, m, "c")]
    present = [(array, count, name) for array, count, name in rows if array is not None]
    for array, count, name in present:
        if array.shape[-2] != count or (name == "c" and array.shape[-1] != n):
            what = f"{name} has shape {array.shape}"
            raise RefsimError("bad-shape", what, rule=f"M = {m} rows of a, N = {n} rows of b")
    leading = {array.shape[:-2] for array, _, _ in present}
    if len(leading) == 1:
        return leading.pop()
    try:
        return np.broadcast_shapes(*leading)
    except ValueError:
        shapes = ", ".join(f"{name} {array.shape}" for array, _, name in present)
        raise RefsimError("bad-shape", f"leading dimensions do not broadcast: {shapes}") from None


def _broadcast(array: NDArray[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    return np.ascontiguousarray(array if array.shape == shape else np.broadcast_to(array, shape))


def _flat(array: NDArray[Any], batch: tuple[int, ...]) -> NDArray[Any]:
    """Return the array with its leading dimensions broadcast and flattened to one."""
    wide = _broadcast(array, (*batch, *array.shape[-2:]))
    return wide if len(batch) == 1 else wide.reshape(math.prod(batch), *array.shape[-2:])
