"""CuPy: the source of a RawKernel or a RawModule, and arguments as CuPy passes them."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from refsim.errors import RefsimError
from refsim.kernel_code import Compiler, KernelCode
from refsim.kernels import Launcher
from refsim.ptx import Extents
from refsim.render.cards import FieldsCard

_DEFAULT_DEVICE = "--device-as-default-execution-space"
_OURS = ("-std=", "--std=", "-arch", "--gpu-architecture", "--gpu-code", "-lineinfo", "-G")
"""Options that refsim sets itself: the language, the target, line numbers."""
_WIDEST: dict[type, type] = {bool: np.bool_, int: np.int64, float: np.float64, complex: np.complex128}


@dataclass(frozen=True, repr=False)
class CupyKernel(FieldsCard):
    """`Kernel(source=k.source, options=k.options, ...)`, and `k.launch(launcher, grid, block, args)` in its run."""

    source: str
    name: str
    options: tuple[str, ...] = ()
    include: tuple[Path, ...] = ()
    compiler: Compiler = "nvrtc"
    entries: tuple[str, ...] = field(default_factory=tuple)
    cooperative: bool = False

    @property
    def code(self) -> KernelCode:
        """Return the kernel's code with CuPy's options."""
        return KernelCode(
            source=self.source, options=self.options, include=self.include, compiler=self.compiler, entries=self.entries
        )

    def launch(
        self,
        launcher: Launcher,
        grid: Extents,
        block: Extents,
        args: Sequence[Any],
        *,
        shared_mem: int = 0,
        name: str = "",
    ) -> None:
        """Launch as `kernel(grid, block, args, shared_mem=...)` does in CuPy; `name` is an entry of a RawModule.

        A Python int or float has 8 bytes, a bool 1, a complex 16; None is a null pointer.
        """
        entry = name or self.name
        if not entry:
            raise RefsimError("ambiguous-name", "a module has several entries", help="launch(..., name=...)")
        options = {"cooperative": True} if self.cooperative else {}
        launcher.launch(entry, grid, block, [_value(each) for each in args], shared_mem, **options)


def from_cupy(kernel: Any, name: str = "", *, options: Sequence[str] = (), include: Sequence[Path] = ()) -> CupyKernel:
    """Return a kernel of CuPy for refsim: a RawKernel, a RawModule, or a source text with the kernel's name.

    CuPy need not be installed. from_cupy('extern "C" __global__ void k() {}', "k").options is
    ("--device-as-default-execution-space",), CuPy's own. Options, backend and name expressions of the kernel are kept;
    `include` is for headers of CuPy. Raises RefsimError `bad-kernel` for an object without a source. Source: CuPy,
    RawKernel and RawModule.
    """
    given = KernelCode(source=kernel) if isinstance(kernel, str) else None
    source = given.source if given is not None else getattr(kernel, "code", None)
    path = None if given is not None else getattr(kernel, "file_path", None)
    if source is None and path is not None:
        source = Path(path).read_text("utf-8")
    if not isinstance(source, str):
        what = f"{kernel!r:.60} has no source"
        raise RefsimError("bad-kernel", what, rule="a RawKernel, a RawModule or a text of CUDA C++")
    found = getattr(kernel, "options", ()) or ()
    kept = tuple(flag for flag in (*found, *options) if not flag.startswith(_OURS))
    backend: Compiler = "nvcc" if getattr(kernel, "backend", "nvrtc") == "nvcc" else "nvrtc"
    entry = name or getattr(kernel, "name", "")
    asked = tuple(getattr(kernel, "name_expressions", None) or ((entry,) if entry else ()))
    defaults = () if backend == "nvcc" else (_DEFAULT_DEVICE,)
    folders, is_cooperative = tuple(map(Path, include)), bool(getattr(kernel, "enable_cooperative_groups", False))
    return CupyKernel(source, entry, (*defaults, *kept), folders, backend, asked, is_cooperative)


def _value(argument: Any) -> Any:
    """Return an argument as CuPy passes it: a Python number in its widest type."""
    if argument is None:
        return np.uint64(0)
    return next((made(argument) for kind, made in _WIDEST.items() if isinstance(argument, kind)), argument)
