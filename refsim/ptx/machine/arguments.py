"""The arguments of a launch as parameter bytes: arrays are copied in, scalars and structs are taken as bytes."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.errors import RefsimError, counted
from refsim.ptx.machine.limits import round_up
from refsim.ptx.memory.global_memory import GlobalMemory
from refsim.ptx.memory.space import Region, Space
from refsim.ptx.text.syntax import Function, Variable

RULE = (
    "an argument is a numpy array (copied in and back), a numpy scalar of the parameter's size, or the bytes of a struct: "
    "bytes, a structured numpy scalar, or an object that bytes() takes and whose `align` says how it is aligned"
)


def pack_parameters(
    function: Function, args: Sequence[Any], device: GlobalMemory
) -> tuple[Space, list[tuple[NDArray[Any], int]]]:
    """Return the parameter bytes of a launch, and the arrays to copy back with their addresses."""
    check_count(function, args)
    packed, arrays = bytearray(), []
    device.reserve(device.end + sum(array.nbytes + 1024 for array in args if isinstance(array, np.ndarray)))
    for position, (parameter, argument) in enumerate(zip(function.parameters, args, strict=True)):
        if isinstance(argument, np.ndarray) and argument.ndim > 0 and parameter.size == 8:
            if not argument.flags.c_contiguous or not argument.flags.writeable:
                raise RefsimError("bad-argument", f"argument {position} must be a contiguous, writable array")
            address = device.allocate(
                argument.nbytes, f"argument {position}", initial=argument.reshape(-1).view(np.uint8)
            )
            arrays.append((argument, address))
            raw = address.to_bytes(8, "little")
        else:
            raw = argument_bytes(function, position, argument)
        packed += bytes(round_up(len(packed), parameter.align) - len(packed)) + raw
    space = Space("param", 0)
    space.bytes = np.frombuffer(bytes(packed).ljust(round_up(len(packed), 16) + 16, b"\0"), np.uint8).copy()
    space.unwritten = np.zeros_like(space.bytes)
    space.add(Region("parameters", 0, len(packed), writable=False))
    return space, arrays


def check_count(function: Function, args: Sequence[Any]) -> None:
    """Raise RefsimError `bad-argument` unless there is one argument for each parameter."""
    if not isinstance(args, Sequence) or isinstance(args, str | bytes):
        raise RefsimError("bad-launch", f"arguments are a list of them, not {args!r:.40}", f"launch of {function.name}")
    if len(args) != len(function.parameters):
        what = f"{function.name} takes {counted(len(function.parameters), 'argument')}, given: {len(args)}"
        help = f"give {' '.join(examples(function.parameters))} on the command line, arrays and numpy scalars in Python"
        raise RefsimError("bad-argument", what, rule=f"its parameters are {described(function.parameters)}", help=help)


def described(parameters: Sequence[Variable]) -> str:
    """Return parameters by name and type: "k_param_0: u64 or pointer, k_param_1: b8[12]"."""
    return ", ".join(f"{one.name}: {one.type}{' or pointer' * (one.type == 'u64')}" for one in parameters) or "none"


def examples(parameters: Sequence[Variable]) -> list[str]:
    """Return an option --arg for each parameter: a file for a possible pointer, else a scalar of its type."""
    return [
        "--arg FILE.npy"
        if one.type in ("pointer", "u64", "b64") or one.size not in (1, 2, 4, 8)
        else f"--arg {one.type.replace('b', 'u', 1)}:1"
        for one in parameters
    ]


def argument_bytes(function: Function, position: int, argument: Any) -> bytes:
    """Return the bytes of a scalar or a struct. They must have the parameter's size, and need no larger alignment than
    the parameter; else RefsimError is raised."""
    name, parameter = f"argument {position} of {function.name}", function.parameters[position]
    align = 1
    if isinstance(argument, np.generic | np.ndarray):
        raw = argument.tobytes()
        align = argument.dtype.alignment if argument.dtype.names else 1
    elif isinstance(argument, bytes | bytearray | memoryview) or hasattr(argument, "__bytes__"):
        raw, align = bytes(argument), int(getattr(argument, "align", 1))
    else:
        raise RefsimError("bad-argument", f"{name} is a {type(argument).__name__}", rule=RULE)
    if len(raw) != parameter.size:
        what = f"{name} has {len(raw)} B, {parameter.name} takes {parameter.size} B"
        help = "give a numpy scalar of that size, such as np.uint64(n), or all bytes of the struct"
        raise RefsimError("bad-argument", what, rule=RULE, help=help)
    if align > parameter.align:
        what = f"{name} is aligned to {align} B, {parameter.name} to {parameter.align} B"
        rule = "a struct lies in the parameters as its type is aligned: the two declarations differ"
        raise RefsimError("bad-argument", what, rule=rule)
    return raw
