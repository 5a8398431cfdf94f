"""Checks of what the host gives to a launcher, equal on both devices: buffers and the arguments of a launch."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import numpy as np

from refsim.errors import RefsimError
from refsim.integers import array_of, is_whole
from refsim.kernels import Buffer, Struct
from refsim.layouts.tma import TensorMap
from refsim.ptx.machine.launch_rules import LaunchRequest
from refsim.sources import CUDA_DRIVER

MAX_MISALIGNMENT = 4095
_FIXED_WIDTH = "biufcV"
"""Kinds of NumPy scalars that a kernel accepts; V stands for structs and the formats of ml_dtypes."""


def check_buffer(name: str, count: Any, dtype: np.dtype[Any], misalign_bytes: int) -> None:
    """Raise RefsimError `bad-buffer`, `bad-dtype` or `out-of-range` unless a buffer of this size and type can exist."""
    where = f"buffer {name!s:.40}"
    if not isinstance(name, str):
        raise RefsimError("bad-buffer", f"a buffer named {name!r:.40}", rule="a buffer has a name: a string")
    if not is_whole(count):
        help = (
            "of a matrix rows * columns; what read returns may be reshaped" if isinstance(count, tuple | list) else ""
        )
        what = f"an output of {count!r:.40} elements"
        raise RefsimError("bad-buffer", what, where, "a count is an integer from 0", help)
    if dtype.hasobject or dtype.itemsize == 0:
        help = "upload an array of numbers or codes: of a recipe, what its codes() returns"
        raise RefsimError("bad-dtype", f"{dtype} has no bytes to copy", where, help=help)
    if not is_whole(misalign_bytes, 0, MAX_MISALIGNMENT):
        raise RefsimError("out-of-range", f"{misalign_bytes!r:.40} bytes off", where, f"0 to {MAX_MISALIGNMENT}")


def flat_of(name: str, array: Any) -> np.ndarray[Any, Any]:
    """Return an array flattened to one dimension; raise RefsimError `not-an-array` for lists of different lengths."""
    return np.ascontiguousarray(array_of(f"buffer {name!s:.40}", array)).reshape(-1)


def dtype_of(name: str, dtype: Any) -> np.dtype[Any]:
    """Return the type of a buffer's elements; raise RefsimError `bad-dtype` for a value that names no type."""
    try:
        element: np.dtype[Any] = np.dtype(dtype)
    except (TypeError, ValueError) as error:
        raise RefsimError("bad-dtype", f"{dtype!r:.40} is not a type of elements", f"buffer {name!s:.40}") from error
    return element


def check_flags(request: LaunchRequest, *, warp_synchronous: bool) -> None:
    """Raise RefsimError `bad-launch` for a flag that is not True or False."""
    flags = {"cooperative": request.cooperative, "programmatic": request.programmatic}
    for name, flag in {**flags, "warp_synchronous": warp_synchronous}.items():
        if not isinstance(flag, bool):
            what = f"{name}={flag!r:.40} is not allowed"
            raise RefsimError("bad-launch", what, f"launch of {request.entry!s:.80}", "True or False")


def with_values(
    request: LaunchRequest, owns: Callable[[Buffer], bool], encode: Callable[[TensorMap], Struct]
) -> LaunchRequest:
    """Return a launch with its arguments as NumPy scalars and Structs: addresses of buffers, encoded tensor maps.

    `owns` must know each buffer, because only its address reaches the kernel. Raises RefsimError `bad-buffer` or
    `bad-argument`, and `bad-launch` for an entry that is not a name or arguments that are not a list.
    """
    entry, args = request.entry, request.args
    if not isinstance(entry, str):
        raise RefsimError("bad-launch", f"an entry is given by its name, not {entry!r:.40}")
    is_scalar = isinstance(args, np.ndarray) and not args.ndim
    if isinstance(args, str) or not isinstance(args, Iterable) or is_scalar:
        raise RefsimError("bad-launch", f"arguments are a list of them, not {args!r:.40}", f"launch of {entry:.80}")
    where = f"launch of {entry}"
    pairs = enumerate(args)
    values = [encode(each) if isinstance(each, TensorMap) else _value(where, at, each, owns) for at, each in pairs]
    return replace(request, args=values)


def check_owned(buffer: Buffer, owns: Callable[[Buffer], bool]) -> None:
    """Raise RefsimError for a buffer of another launcher, or of this launcher before it was closed."""
    if not isinstance(buffer, Buffer):
        raise RefsimError("bad-buffer", f"{buffer!r:.40} is not a buffer", help="what upload or output returned")
    if not owns(buffer):
        raise RefsimError("bad-buffer", f"buffer {buffer.name!r} does not belong to this launcher")


def check_mapped(made: TensorMap, buffers: Iterable[Buffer]) -> None:
    """Raise RefsimError `bad-tensor-map` unless the tensor lies in one buffer: a copy engine would read beyond it."""
    if not isinstance(made, TensorMap):
        what = f"{made!r:.40} is not a tensor map"
        raise RefsimError("bad-argument", what, help="layouts.tensor_map(...) makes one")
    strides = (0, *made.strides)
    last = sum((extent - 1) * stride for extent, stride in zip(made.dims, strides, strict=True))
    end = made.address + last + -(-made.dims[0] * made.data_type.element_bits // 8)
    for buffer in buffers:
        ends = buffer.address + buffer.count * buffer.dtype.itemsize
        if buffer.address <= made.address < ends:
            if end > ends:
                raise RefsimError(
                    "bad-tensor-map",
                    f"the tensor ends {end - ends} B past the end of buffer {buffer.name!r}",
                    f"{made.data_type.name} {made.dims}, strides {made.strides}",
                    str(CUDA_DRIVER["cuTensorMapEncodeTiled: globalAddress, globalDim and globalStrides"]),
                )
            return
    raise RefsimError(
        "bad-tensor-map",
        f"address {made.address:#x} lies in no buffer of this launcher",
        rule="a tensor map is made of the address of a buffer and a byte offset into it",
        help="layouts.tensor_map(..., address=buffer.address + offset)",
    )


def no_call() -> RefsimError:
    """Return the error of `call` for a kernel that is compiled code."""
    what = "the kernel is no Python function"
    return RefsimError("bad-kernel", what, rule="call(...) is of Kernel(call=...)", help="launch(entry, ...)")


def _value(where: str, number: int, argument: Any, owns: Callable[[Buffer], bool]) -> Any:
    if isinstance(argument, Buffer):
        check_owned(argument, owns)
        return np.uint64(argument.address)
    if isinstance(argument, Struct) or (isinstance(argument, np.generic) and argument.dtype.kind in _FIXED_WIDTH):
        return argument
    raise RefsimError(
        "bad-argument",
        f"argument {number} is {argument!r}, whose width is unknown",
        where,
        "arguments are Buffers, Structs, tensor maps or NumPy scalars of the width of the .param",
        f"write np.{'float' if isinstance(argument, float) else 'uint'}32({argument!r}), or the type that the kernel declares",
    )
