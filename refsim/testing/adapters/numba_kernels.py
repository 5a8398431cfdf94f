"""numba-cuda: the PTX of a Python function, and arrays as the parameters that numba-cuda makes of them."""

import importlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from math import prod
from types import ModuleType
from typing import Any

import numpy as np

from refsim.errors import Kind, RefsimError, counted, missing_extra
from refsim.kernels import Buffer, Launcher
from refsim.ptx import Extents
from refsim.render.cards import FieldsCard

Parameter = tuple[str, int]
"""A NumPy dtype and the number of dimensions; 0 for a value."""
Argument = Parameter | tuple[Parameter, ...]
"""A parameter, or the parameters of a tuple."""
NUMBA_CUDA = "pip install 'numba-cuda[cu13]'"


@dataclass(frozen=True, repr=False)
class NumbaKernel(FieldsCard):
    """A function compiled by numba-cuda: `Kernel(ptx=k.ptx, ...)`; run calls `k.launch(launcher, grid, block, x,
    n)`."""

    ptx: str
    entry: str
    parameters: tuple[Argument, ...]
    version: str

    def launch(
        self,
        launcher: Launcher,
        grid: Extents,
        block: Extents,
        *args: Any,
        shared_bytes: int = 0,
        cooperative: bool = False,
    ) -> None:
        """Run the kernel; an array is a Buffer, or (Buffer, shape) if it has several dimensions; all are C-contiguous.

        An array becomes meminfo and parent (both null), element count, element bytes, address, extents, and strides in
        bytes.
        """
        if len(args) != len(self.parameters):
            what = f"{self.entry} takes {counted(len(self.parameters), 'argument')}, given: {len(args)}"
            raise RefsimError("bad-argument", what)
        values = [value for pair in zip(self.parameters, args, strict=True) for value in _members(*pair)]
        options = {"cooperative": True} if cooperative else {}
        launcher.launch(self.entry, grid, block, values, shared_bytes, **options)


def from_numba(function: Any, signature: Any, target: str = "sm_80", **options: Any) -> NumbaKernel:
    """Compile a Python function by numba-cuda without a GPU: from_numba(f, "void(float32[::1], int32)", "sm_80").

    `function` is a plain function or a function of `@cuda.jit`; `options` are the options of numba.cuda.compile_ptx
    (fastmath, opt, lineinfo, launch_bounds). Raises RefsimError: `missing-extra` if numba-cuda is not installed (exit
    4), `compile-error` with its message, `bad-argument` for types other than numbers, arrays and tuples of numbers.
    Source: numba-cuda, numba.cuda.compile_ptx and the data model of its arrays.
    """
    cuda = _imported()
    capability = re.fullmatch(r"sm_(\d+)(\d)[af]?", target)
    if capability is None:
        raise RefsimError("unknown-target", f"{target!r} is not a target", help="write sm_80")
    plain = getattr(function, "py_func", function)
    try:
        types, _ = _signatures().normalize_signature(signature)
        text, _ = cuda.compile_ptx(
            plain, types, cc=(int(capability[1]), int(capability[2])), **{"lineinfo": True, **options}
        )
    except Exception as error:
        where = f"{plain.__name__} for {target}"
        if type(error).__name__ == "CudaSupportError":  # numba-cuda compiles min and max without a driver
            what = "the numba.cuda that numba itself brings asks the driver about this function, and none is here"
            raise RefsimError("missing-extra", what, where, help=NUMBA_CUDA, kind=Kind.MISSING) from error
        raise RefsimError("compile-error", f"numba-cuda raised {type(error).__name__}: {error}", where) from error
    entry = re.search(r"\.visible\s+\.entry\s+([\w$]+)", text)
    if entry is None:
        what = f"the PTX of {plain.__name__} has no entry"
        raise RefsimError("compile-error", what, help="give a kernel, not a device function")
    return NumbaKernel(text, entry[1], tuple(map(_parameter, types)), _version())


def _imported() -> ModuleType:
    try:
        return importlib.import_module("numba.cuda")
    except ImportError as missing:
        raise missing_extra(f"numba-cuda is not installed: {missing}", NUMBA_CUDA) from missing


def _signatures() -> ModuleType:
    """Return the module that parses signatures: numba-cuda's own, else numba's."""
    try:
        return importlib.import_module("numba.cuda.core.sigutils")
    except ModuleNotFoundError:
        return importlib.import_module("numba.core.sigutils")


def _version() -> str:
    try:
        return metadata.version("numba-cuda")
    except metadata.PackageNotFoundError:
        return metadata.version("numba")


def _parameter(kind: Any) -> Argument:
    """Return the parameters of a numba type: one, or one for each member of a tuple."""
    members = getattr(kind, "types", None)
    return tuple(_single(member) for member in members) if members is not None else _single(kind)


def _single(kind: Any) -> Parameter:
    dimensions = getattr(kind, "ndim", 0)
    if dimensions and getattr(kind, "layout", "C") == "F":
        raise RefsimError("bad-argument", f"{kind} is in Fortran order", rule="arrays are C-contiguous")
    try:
        return np.dtype(str(kind.dtype if dimensions else kind)).str, dimensions
    except (TypeError, AttributeError):
        what = f"an argument of type {kind}"
        raise RefsimError("bad-argument", what, rule="numbers, arrays of them, and tuples of these") from None


def _members(parameter: Argument, argument: Any) -> list[Any]:
    """Return the launch values of an argument; the members of a tuple follow each other."""
    match parameter:
        case (str(dtype), int(dimensions)):
            return _flat((dtype, dimensions), argument)
    members = tuple(argument) if isinstance(argument, tuple | list) else (argument,)
    if len(members) != len(parameter):
        raise RefsimError("bad-argument", f"a tuple of {len(parameter)} is given {len(members)} values")
    return [value for pair in zip(parameter, members, strict=True) for value in _members(*pair)]


def _flat(parameter: Parameter, argument: Any) -> list[Any]:
    """Return the launch values of one number or array."""
    dtype, dimensions = np.dtype(parameter[0]), parameter[1]
    if not dimensions:
        value = dtype.type(argument)
        return [value.real, value.imag] if dtype.kind == "c" else [value]
    buffer, shape = argument if isinstance(argument, tuple) else (argument, None)
    if not isinstance(buffer, Buffer):
        what = f"{argument!r:.60} stands where an array does"
        raise RefsimError("bad-argument", what, rule="a Buffer, or (Buffer, shape)")
    shape = (buffer.count,) if shape is None else tuple(shape)
    _check(buffer, shape, dtype, dimensions)
    strides = [dtype.itemsize * prod(shape[place + 1 :]) for place in range(dimensions)]
    counts = [np.uint64(number) for number in (prod(shape), dtype.itemsize)]
    return [np.uint64(0), np.uint64(0), *counts, buffer, *map(np.uint64, shape), *map(np.uint64, strides)]


def _check(buffer: Buffer, shape: Sequence[int], dtype: np.dtype[Any], dimensions: int) -> None:
    """Raise RefsimError bad-argument if a buffer does not fit the signature's dtype and dimensions."""
    if len(shape) != dimensions or prod(shape) > buffer.count or buffer.dtype.itemsize != dtype.itemsize:
        what = f"{buffer.name}: {buffer.count} elements of {buffer.dtype} as {tuple(shape)} of {dtype}"
        rule = f"the signature has {dimensions} dimensions of {dtype}"
        raise RefsimError("bad-argument", what, rule=rule, help="(buffer, shape) for an array of several dimensions")
