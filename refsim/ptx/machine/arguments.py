"""The arguments of a launch as parameter bytes: arrays are copied in, scalars and structs are taken as bytes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from refsim.errors import RefsimError, counted
from refsim.ptx.machine.launch_rules import round_up
from refsim.ptx.memory.arrays import Array
from refsim.ptx.memory.global_memory import GlobalMemory
from refsim.ptx.memory.space import GLOBAL_BASE, Region, Space
from refsim.ptx.text.source_names import UNKNOWN, code_of, differs
from refsim.ptx.text.syntax import Function, Variable

MISFIT, OTHER_TYPE = "bad-argument", "bad-dtype"
NUMBERS = bool | int | float | complex | np.number | np.bool_
RULE = (
    "an argument is a numpy array (copied in and back), a numpy scalar of the parameter's size, or the bytes of a struct: "
    "bytes, a structured numpy scalar, or an object that bytes() takes and whose `align` says how it is aligned"
)


@dataclass(frozen=True)
class PointerTo:
    """A device address as a program gives it, and the type of the array's elements if it is known."""

    address: int
    element: np.dtype[Any] | None = None

    def __bytes__(self) -> bytes:
        return self.address.to_bytes(8, "little")


def raw_bytes(argument: Any) -> bytes:
    """Return the bytes of an argument: of a Python int or float 8 B, of a bool 1 B, of a complex number 16 B."""
    is_value = isinstance(argument, NUMBERS | np.generic | np.ndarray)
    return np.asarray(argument).tobytes() if is_value else bytes(argument)


def misfit(
    name: str, parameter: Variable, argument: Any, declared: str = UNKNOWN, *, is_cut: bool = False
) -> RefsimError | None:
    """Return how an argument disagrees with a parameter and its declared C++ type; None if it fits.

    The code is OTHER_TYPE where the kernel gets what the program gave and may use it so, else MISFIT. `is_cut` lets a number
    of more bytes fit if its low bytes hold its value.
    """
    size, kind, is_wrong, what = parameter.size, parameter.type[:1], True, ""
    help = "give a numpy scalar of that type and size, such as np.float32(x), or all bytes of the struct"
    is_pointer = size == 8 and (declared.endswith("*") or parameter.type == "pointer")
    if isinstance(argument, np.ndarray) and argument.size == 1:
        argument = argument.reshape(())[()]
    is_number, is_whole = (isinstance(argument, kinds) for kinds in (NUMBERS, int | np.integer | np.bool_))
    wider = len(raw_bytes(argument)) - size
    if isinstance(argument, PointerTo):
        is_wrong = size != 8 or kind == "f"
        if is_wrong or code_of(declared) == "i8":
            what, help = "is a pointer", "give the number itself"
        elif is_pointer and (element := argument.element) is not None and differs(element, declared[:-1]):
            what, help = f"is an array of {element}", f"give an array of {declared[:-1]}"
    elif isinstance(argument, np.ndarray) and (is_pointer or wider):
        what, help = f"is a host array of {size + wider} B", "copy an array to the device; give one number by value"
    elif is_number and wider >= 0:
        if is_pointer:
            fits, help = is_whole and not 0 < argument < GLOBAL_BASE, "give an array of the device"
        elif is_whole and kind != "f":
            fits = not wider or -(1 << 8 * size - 1) <= argument < 1 << 8 * size
        else:
            fits = argument == 0 or not (is_whole or wider or kind in "us")
        what = "" if fits and (not wider or (is_cut and type(argument) is int)) else f"is {argument!r:.40}"
        is_wrong = not (fits and is_cut) if wider else is_pointer or not isinstance(argument, np.unsignedinteger)
    elif wider:
        what = f"has {size + wider} B"
    if not what:
        return None
    takes = f"{parameter.type} of {size} B" if not is_pointer else declared if code_of(declared[:-1]) else "a pointer"
    rule = "an argument has the size and the type of its parameter"
    return RefsimError(MISFIT if is_wrong else OTHER_TYPE, f"{name} {what}, its parameter is {takes}", "", rule, help)


def pack_parameters(
    function: Function, args: Sequence[Any], device: GlobalMemory
) -> tuple[Space, list[tuple[Array, int]]]:
    """Return the parameter bytes of a launch, and the arrays to copy back with their addresses."""
    check_count(function, args)
    packed, arrays = bytearray(), []
    device.reserve(device.end + sum(array.nbytes + 1024 for array in args if isinstance(array, np.ndarray)))
    for position, (parameter, argument) in enumerate(zip(function.parameters, args, strict=True)):
        if isinstance(argument, np.ndarray) and argument.ndim > 0 and parameter.size == 8 and parameter.type != "f64":
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


def check_count(function: Function, args: Sequence[Any], where: str = "") -> None:
    """Raise RefsimError `bad-argument` unless there is one argument for each parameter; `where` is its place."""
    if not isinstance(args, Sequence) or isinstance(args, str | bytes):
        raise RefsimError("bad-launch", f"arguments are a list of them, not {args!r:.40}", f"launch of {function.name}")
    if len(args) != len(function.parameters):
        what = f"{function.name} takes {counted(len(function.parameters), 'argument')}, given: {len(args)}"
        help = f"give {' '.join(examples(function.parameters))} on the command line, arrays and numpy scalars in Python"
        raise RefsimError("bad-argument", what, where, f"its parameters are {described(function.parameters)}", help)


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
    if (found := misfit(name, parameter, argument)) is not None and found.code == MISFIT:
        raise found
    if align > parameter.align:
        what = f"{name} is aligned to {align} B, {parameter.name} to {parameter.align} B"
        rule = "a struct lies in the parameters as its type is aligned: the two declarations differ"
        raise RefsimError("bad-argument", what, rule=rule)
    return raw
