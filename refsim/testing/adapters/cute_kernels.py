"""CuTe DSL: the PTX of a compiled function, and tensors as the parameters that CuTe makes of them."""

import importlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from refsim.errors import RefsimError, counted, missing_extra, unknown
from refsim.kernels import Buffer, Launcher, Struct
from refsim.layouts.tma import TensorMap
from refsim.ptx import Extents
from refsim.ptx.text.parser import signatures
from refsim.render.cards import FieldsCard

CUTE = "pip install 'nvidia-cutlass-dsl[cu13]'"


@dataclass(frozen=True, repr=False)
class CuteKernel(FieldsCard):
    """A function compiled by CuTe DSL: `Kernel(ptx=k.ptx, ...)`; run calls `k.launch(launcher, grid, block, x, n)`.

    `parameters` holds (bytes, alignment) of each parameter, by entry; `version` is the version of CuTe DSL.
    """

    ptx: str
    parameters: dict[str, tuple[tuple[int, int], ...]]
    version: str

    @property
    def entry(self) -> str:
        """Return the name of the first entry."""
        return next(iter(self.parameters))

    def launch(
        self,
        launcher: Launcher,
        grid: Extents,
        block: Extents,
        *args: Any,
        entry: str = "",
        shared_bytes: int = 0,
        cluster: Extents | None = None,
    ) -> None:
        """Run one entry with the arguments of the kernel function; the host function of `@cute.jit` is not run.

        A tensor is a Buffer if its layout is static, else (Buffer, *extents, *strides) of the dynamic extents and
        strides in order: a Python integer is an Int32 extent, a NumPy scalar has its own width. A tensor map is a
        TensorMap, another struct a Struct. `entry` is the name of the kernel function, or a part of the entry's name.
        """
        found = [name for name in self.parameters if entry in name]
        if len(found) != 1 and not (entry == "" and found):
            raise unknown("entry", entry, list(self.parameters))
        sizes = self.parameters[found[0]]
        if len(args) != len(sizes):
            what = f"{found[0]:.60} takes {counted(len(sizes), 'parameter')}, given: {len(args)}"
            raise RefsimError("bad-argument", what)
        values = [_value(place, given, *size) for place, (given, size) in enumerate(zip(args, sizes, strict=True))]
        options: dict[str, Any] = {} if cluster is None else {"cluster": cluster}
        launcher.launch(found[0], grid, block, values, shared_bytes, **options)


def from_cute(function: Any, *args: Any, target: str = "sm_90a", options: str = "") -> CuteKernel:
    """Compile a function of `@cute.jit` by CuTe DSL without a GPU: from_cute(add, x, y, cutlass.Int32(5)).

    `args` are the arguments of cute.compile, e.g. `cutlass.cute.runtime.make_fake_compact_tensor(...)`. A function that
    cute.compile returned is taken as it is; it needs the option --keep-ptx. Raises RefsimError: `missing-extra` if CuTe
    DSL is not installed (exit 4), `compile-error` with its message. Source: CUTLASS, CuTe DSL, cute.compile.
    """
    compiled = function
    if not hasattr(function, "__ptx__"):
        if re.fullmatch(r"sm_\d+[af]?", target) is None:
            raise RefsimError("unknown-target", f"{target!r} is not a target", help="write sm_90a")
        try:
            cute = importlib.import_module("cutlass.cute")
        except ImportError as missing:
            raise missing_extra(f"CuTe DSL is not installed: {missing}", CUTE) from missing
        try:
            with TemporaryDirectory() as folder:  # --keep-ptx also writes the PTX to a file
                flags = f"--gpu-arch {target} --keep-ptx --dump-dir {folder} {options}".strip()
                compiled = cute.compile(function, *args, options=flags)
        except Exception as error:
            where = f"{getattr(function, '__name__', 'a function')} for {target}"
            raise RefsimError("compile-error", f"CuTe DSL raised {type(error).__name__}: {error}", where) from error
    text = compiled.__ptx__
    if not text:
        raise RefsimError("compile-error", "the compiled function holds no PTX", help='options="--keep-ptx"')
    text = (text if isinstance(text, str) else text.decode()).rstrip("\0")
    entries = {
        name: tuple((each.size, each.align) for each in function.parameters)
        for name, function in signatures(text).functions.items()
        if function.is_entry
    }
    if not entries:
        raise RefsimError("compile-error", "the PTX has no entry", help="a function of @cute.jit launches a kernel")
    try:
        version = metadata.version("nvidia-cutlass-dsl")
    except metadata.PackageNotFoundError:
        version = "unknown"
    return CuteKernel(text, entries, version)


def _value(place: int, given: Any, size: int, align: int) -> Any:
    """Return one launch value of a parameter of `size` bytes."""
    if isinstance(given, Buffer | tuple):
        buffer, *leaves = given if isinstance(given, tuple) else (given,)
        if not isinstance(buffer, Buffer):
            raise RefsimError("bad-argument", f"argument {place} is {given!r:.60}", rule="a tensor is (Buffer, ...)")
        if size == 8 and not leaves:
            return buffer
        return Struct(_packed(place, [np.uint64(buffer.address), *leaves], size), align)
    if isinstance(given, bool | int | float):
        kinds = {1: np.bool_, 4: np.float32 if isinstance(given, float) else np.int32, 8: np.int64}
        given = kinds.get(size, np.int64)(given) if not (isinstance(given, float) and size == 8) else np.float64(given)
    if isinstance(given, Struct | TensorMap | np.generic):
        return given
    rule = "a Buffer, (Buffer, extents and strides), a number, a TensorMap or a Struct"
    raise RefsimError("bad-argument", f"argument {place} is {given!r:.60}", rule=rule)


def _packed(place: int, leaves: Sequence[Any], size: int) -> bytes:
    """Return the bytes of a pointer, extents and strides, each at a multiple of its own size."""
    made = bytearray()
    for leaf in leaves:
        number = leaf if isinstance(leaf, np.generic) else np.int32(leaf)
        made += bytes(-len(made) % number.itemsize) + number.tobytes()
    if len(made) + -len(made) % 8 != size:
        what = f"argument {place} has {len(made)} bytes, its parameter {size}"
        help = "give each dynamic extent, then each dynamic stride, np.int64(...) for a stride of 64 bits"
        raise RefsimError("bad-argument", what, rule="pointer, dynamic extents, dynamic strides", help=help)
    return bytes(made.ljust(size, b"\0"))
