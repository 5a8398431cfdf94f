"""What the host gives to a launcher, checked alike on both devices: buffers and the arguments of a launch."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from refsim.errors import RefsimError
from refsim.integers import is_whole
from refsim.kernels import Buffer, Struct

MAX_MISALIGNMENT = 4095
_FIXED_WIDTH = "biufcV"
"""Kinds of NumPy scalars that a kernel takes: V are structs and the formats of ml_dtypes."""


def check_buffer(name: str, count: Any, dtype: np.dtype[Any], misalign_bytes: int) -> None:
    """RefsimError `bad-count`, `bad-dtype` or `bad-misalignment` for a buffer that cannot be."""
    where = f"buffer {name}"
    if not is_whole(count):
        raise RefsimError("bad-count", f"an output of {count!r} elements", where)
    if dtype.hasobject or dtype.itemsize == 0:
        help = "upload an array of numbers or codes: of a recipe, what its codes() returns"
        raise RefsimError("bad-dtype", f"{dtype} has no bytes to copy", where, help=help)
    if not is_whole(misalign_bytes, 0, MAX_MISALIGNMENT):
        raise RefsimError("bad-misalignment", f"{misalign_bytes!r:.40} bytes off", where, f"0 to {MAX_MISALIGNMENT}")


def launch_values(entry: str, args: Sequence[Any], owns: Callable[[Buffer], bool]) -> list[Any]:
    """Arguments as NumPy scalars and Structs; a buffer must be one that `owns` knows, since an address is all that is left.

    Raises RefsimError `foreign-buffer` or `untyped-argument`, and `bad-launch` for an entry or arguments that are none.
    """
    if not isinstance(entry, str):
        raise RefsimError("bad-launch", f"an entry is given by its name, not {entry!r:.40}")
    if isinstance(args, str) or not isinstance(args, Iterable):
        raise RefsimError("bad-launch", f"arguments are a list of them, not {args!r:.40}", f"launch of {entry:.80}")
    return [_value(f"launch of {entry}", number, argument, owns) for number, argument in enumerate(args)]


def check_owned(buffer: Buffer, owns: Callable[[Buffer], bool]) -> None:
    """RefsimError for a buffer of another launcher, or of this one before it was closed."""
    if not owns(buffer):
        raise RefsimError("foreign-buffer", f"buffer {buffer.name!r} does not belong to this launcher")


def no_call() -> RefsimError:
    """The error of `call` where a kernel is compiled code."""
    return RefsimError(
        "no-call",
        "the kernel is no Python function",
        rule="call(...) is of Kernel(call=...)",
        help="launch(entry, ...)",
    )


def _value(where: str, number: int, argument: Any, owns: Callable[[Buffer], bool]) -> Any:
    if isinstance(argument, Buffer):
        check_owned(argument, owns)
        return np.uint64(argument.address)
    if isinstance(argument, Struct) or (isinstance(argument, np.generic) and argument.dtype.kind in _FIXED_WIDTH):
        return argument
    raise RefsimError(
        "untyped-argument",
        f"argument {number} is {argument!r}, whose width is unknown",
        where,
        "arguments are Buffers, Structs or NumPy scalars of the width of the .param",
        f"write np.uint32({argument!r}), or the type that the kernel declares",
    )
