"""The modules that stand-ins replace, and the import hook that replaces them.

One entry per module. An entry of a package whose other modules have no entry stands for the whole package: every
other module is refused by its name, whether the package is installed or not.
"""

import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

from refsim.errors import RefsimError
from refsim.ptx.text.words import pairs_in
from refsim_run.session import current


def names_in(text: str) -> frozenset[str]:
    """Return the words of a text: a table of names."""
    return frozenset(text.split())


def gathered(package: str, homes: Mapping[str, str]) -> dict[str, Any]:
    """Return what modules of a package define, by name; `homes` lists the names of each module."""
    pairs = [(f"{package}.{home}", name) for home, text in homes.items() for name in names_in(text)]
    return {name: getattr(importlib.import_module(home), name) for home, name in pairs}


@dataclass(frozen=True)
class Seam:
    """A module of another package, and refsim's module in its place; all its other submodules are refused."""

    name: str
    module: str


_HOMES = pairs_in("""
    cupy cupy.cuda cupy.cuda.compiler:cupy.compiler cupy.cuda.device:cupy.device cupy.cuda.driver:cupy.driver
    cupy.cuda.memory:cupy.pool cupy.cuda.runtime:cupy.runtime cupy.cuda.stream:cupy.device cupy.fft cupy.linalg
    cupy.random cupy.testing cupyx cupyx.profiler pycuda pycuda.autoinit pycuda.autoprimaryctx:pycuda.autoinit
    pycuda.characterize pycuda.compiler pycuda.cumath pycuda.curandom pycuda.driver pycuda.elementwise
    pycuda.gpuarray pycuda.reduction pycuda.tools
""")
"""The replaced modules, each with its module of refsim_run where that has another name."""
SEAMS = tuple(Seam(name, f"refsim_run.{home or name}") for name, home in _HOMES.items())


@dataclass(frozen=True)
class Hook:
    """A module that stays as it is, and a function of refsim that is called with the module once it is imported."""

    name: str
    module: str
    function: str


HOOKS = (
    Hook("cuda.bindings.driver", "refsim_run.cuda.bindings", "take_place"),
    Hook("cuda.core", "refsim_run.cuda.core", "take_place"),
    Hook("cuda.core.utils", "refsim_run.cuda.core", "take_place_of_views"),
    Hook("numba.cuda.cudadrv.driver", "refsim_run.cuda.bindings", "take_place_of_numba"),
    Hook("torch", "refsim_run.torch.places", "take_place"),
    Hook("triton.compiler.compiler", "refsim_run.triton.driver", "take_resources"),
    Hook("triton.runtime.jit", "refsim_run.triton.driver", "take_arrays"),
    Hook("triton.backends", "refsim_run.triton.driver", "take_place"),
)
_HOOKS = {row.name: row for row in HOOKS}
_BY_NAME = {row.name: row for row in SEAMS}
_OF_MODULES = {row.module: row.name for row in SEAMS}
_WHOLE = tuple(f"{row.name}." for row in SEAMS)
_ABSENT = ("cupy_backends",)
"""Packages that are installed with one of these packages and have no stand-in."""


class StandInLoader(Loader):
    """Load a module of refsim under another name: one object under both names, so that its classes exist once."""

    def __init__(self, row: Seam) -> None:
        self.row = row

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Return refsim's module, imported under its own name."""
        made = importlib.import_module(self.row.module)
        self.own = made.__spec__
        return made

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self.own  # the import system has stored the spec of the other name


class StandInFinder(MetaPathFinder):
    """Find stand-ins before anything that is installed, and refuse modules of their packages that are not simulated."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of a stand-in or a hooked module; ImportError for what is not simulated, None for others."""
        row = _BY_NAME.get(fullname)
        if row is not None:
            inner = any(name.startswith(f"{fullname}.") for name in _BY_NAME)
            return ModuleSpec(fullname, StandInLoader(row), is_package=inner)
        if fullname in _HOOKS:
            return _hooked(_HOOKS[fullname], path)
        if fullname.startswith(_WHOLE) or fullname in _ABSENT:
            refusal = current().unsupported(f"module {fullname}")
            raise ImportError(
                str(refusal), name=fullname
            )  # `from package import module` would swallow ModuleNotFoundError
        package, _, name = fullname.rpartition(".")
        if package in _OF_MODULES and PathFinder.find_spec(fullname, path) is None:  # `from package import name`
            said = f"[unsupported-feature] {_OF_MODULES[package]}.{name} is not simulated"
            raise ImportError(said, name=f"{_OF_MODULES[package]}.{name}")
        return None


class HookLoader(Loader):
    """Import a module as it is, then call the hook."""

    def __init__(self, inner: Loader, row: Hook) -> None:
        self.inner, self.row = inner, row

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self.inner.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Execute the module, then call the hook with it."""
        self.inner.exec_module(module)
        getattr(importlib.import_module(self.row.module), self.row.function)(module)


def _hooked(row: Hook, path: Sequence[str] | None) -> ModuleSpec | None:
    spec = PathFinder.find_spec(row.name, path)
    if spec is not None and spec.loader is not None:
        spec.loader = HookLoader(spec.loader, row)
    return spec


def install() -> None:
    """Put the stand-ins before everything that is imported from now on; RefsimError `seam-too-late`."""
    late = [name for name in (*_BY_NAME, *_HOOKS) if name in sys.modules]
    if late:
        raise RefsimError("seam-too-late", f"{late[0]} is imported already", rule="stand-ins come before the program")
    sys.meta_path.insert(0, StandInFinder())


def refuse(package: str, name: str) -> Exception:
    """Return the exception for a name that a stand-in lacks: AttributeError if private, else UnsupportedError."""
    if name.startswith("_") or f"{package}.{name}" in _BY_NAME:  # `from package import module` asks first, then imports
        return AttributeError(name)
    return current().unsupported(f"{package}.{name}")


def refusing(owner: str) -> Callable[..., Any]:
    """Return the `__getattr__` of a module or a class: it refuses every name that this stand-in lacks."""

    def lacked(*self_and_name: Any) -> Any:
        raise refuse(owner, self_and_name[-1])

    return lacked


def always(value: Any = None) -> Callable[..., Any]:
    """Return a function or method that takes anything and returns `value`: there is one device, and a call that returns
    has completed, so that nothing is left to wait for, to choose or to give back."""
    return lambda *args, **named: value


def with_stream(call: Callable[..., None]) -> Callable[..., None]:
    """Return the asynchronous form of a call: it takes a stream as well, and has completed when it returns."""
    count = call.__code__.co_argcount

    def asynchronous(*args: Any, stream: Any = None, **named: Any) -> None:
        if len(args) > count + 1:
            raise TypeError(f"{call.__name__}_async() takes {count + 1} arguments, and {len(args)} were given")
        call(*args[:count], **named)

    return asynchronous
