"""Checks of whole-number arguments; errors show the value that failed."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from refsim.errors import RefsimError


def is_whole(value: object, least: int = 0, most: int | None = None) -> bool:
    """Return whether a value is one whole number in least .. most, Python's or NumPy's; a truth value is not."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        return False
    return bool(value >= least and (most is None or value <= most))


def whole(what: str, value: ArrayLike, *, limit: int | None = None, least: int = 0) -> NDArray[np.int64]:
    """Return `value` (any shape) as int64; raise RefsimError unless every number is whole and in least .. limit - 1.

    whole("row", [3, 7], limit=8) passes; whole("row", 8, limit=8) is the error "row 8 is outside 0..7".
    """
    array = array_of(what, value)
    if array.dtype.kind not in "iu" and array.size:
        raise RefsimError("not-whole", f"{what} is {_shown(array)}: a whole number is needed")
    if array.size and (int(array.min()) < least or (limit is not None and int(array.max()) >= limit)):
        wrong = (array < least) | (array >= limit) if limit is not None else array < least
        bounds = f"outside {least}..{limit - 1}" if limit is not None else f"less than {least}"
        raise RefsimError("out-of-range", f"{what} {int(array[wrong].flat[0])} is {bounds}")
    if array.size and int(array.max()) > np.iinfo(np.int64).max:
        raise RefsimError("out-of-range", f"{what} {int(array.max())} needs more than 63 bits")
    return array.astype(np.int64)


def whole_number(what: str, value: ArrayLike, *, limit: int | None = None, least: int = 0) -> int:
    """Return one whole number in least .. limit - 1; raise RefsimError for a list, even of one number."""
    found = whole(what, value, limit=limit, least=least)
    if found.ndim:
        raise RefsimError("not-whole", f"{what} has shape {found.shape}: one whole number is needed")
    return int(found)


def whole_numbers(what: str, values: ArrayLike, *, limit: int | None = None, least: int = 0) -> tuple[int, ...]:
    """Return a list of whole numbers in least .. limit - 1 as a tuple; `what` is the name of one of them in errors."""
    found = whole(what, values, limit=limit, least=least)
    if found.ndim != 1:
        raise RefsimError("not-whole", f"{what}s have shape {found.shape}: a list of whole numbers is needed")
    if isinstance(values, list | tuple) and any(isinstance(each, bool | np.bool_) for each in values):
        raise RefsimError("not-whole", f"{what}s are {values}: a list of whole numbers is needed")
    return tuple(found.tolist())


def array_of(what: str, values: ArrayLike) -> NDArray[Any]:
    """Return `values` as an array; raise RefsimError not-an-array for lists of different lengths."""
    try:
        return read_as_array(what, values)
    except ValueError as error:
        help = "give all rows one length"
        raise RefsimError("not-an-array", f"{what}: lists of different lengths are not an array", help=help) from error


def _shown(array: NDArray[np.generic]) -> str:
    return repr(array.flat[0].item()) if array.dtype.kind != "O" else repr(array.flat[0])


def read_as_array(what: str, values: ArrayLike) -> NDArray[Any]:
    """Return np.asarray(values); raise RefsimError not-an-array for a tensor that NumPy cannot read.

    NumPy cannot read tensors of unknown types, on a GPU, or with gradients.
    """
    try:
        return np.asarray(values)
    except (TypeError, RuntimeError) as error:
        raise RefsimError(
            "not-an-array",
            f"{what}: NumPy cannot read this {type(values).__name__}: {str(error).splitlines()[0]}",
            rule="an array of NumPy or ml_dtypes",
            help="of torch: tensor.detach().cpu().view(torch.uint8).numpy().view(ml_dtypes.float8_e4m3fn)",
        ) from error
