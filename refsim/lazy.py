"""Names of a package that load when first used, so that importing the package imports nothing heavy.

A package writes each of its names once, in the form by which type checkers know that it is public:

    if TYPE_CHECKING:
        from refsim.numerics.special import approx as approx
    else:
        __getattr__, __dir__ = exports(__name__)
"""

import ast
import re
import sys
from collections.abc import Callable, Sequence
from functools import cache
from importlib import import_module
from opcode import opmap
from typing import Any

from refsim.errors import nearest

_IMPORT_FROM = opmap[
    "IMPORT_FROM"
]  # Python would replace an AttributeError of `from package import name` with its own text


def exports(package: str, *own: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` of a package that imports its public names under `if TYPE_CHECKING`.

    `own` are names that the package itself defines. The package's `__all__` holds both. A type checker must not see the
    result, because every misspelled name would have type Any: packages assign it in the `else`.
    """

    module: Any = sys.modules[package]  # now, because a caller may remove it from sys.modules

    @cache
    def homes() -> dict[str, str]:
        """Return the module of each name that the package's source imports as itself (`import name as name`)."""
        imports = (line for line in ast.walk(ast.parse(_source(module))) if isinstance(line, ast.ImportFrom))
        return {name.name: str(line.module) for line in imports for name in line.names if name.name == name.asname}

    def load(name: str) -> Any:
        home_of = homes()
        if name == "__all__":
            return public()
        if name in home_of:
            home = home_of[name]
            return import_module(f"{home}.{name}") if home == package else getattr(import_module(home), name)
        error, caller = MissingNameError(package, name, public()), sys._getframe(1)
        if caller.f_code.co_code[caller.f_lasti] == _IMPORT_FROM and f"{package}.{name}" not in sys.modules:
            raise ImportError(f"cannot import name {name!r} from {package!r}: {error.way_out()}", name=package)
        raise error

    def public() -> list[str]:
        return sorted([*own, *homes()])

    return load, public


def _source(module: Any) -> str:
    """Return the text of a module, also out of an archive; the loader of pytest has no text, but a file."""
    get = getattr(module.__loader__, "get_source", None)
    if get is None:
        with open(module.__spec__.origin, encoding="utf-8") as stream:
            return stream.read()
    return str(get(module.__name__))


_ELSEWHERE = {
    "refsim.numerics": "mma dot multiply exact_product",
    "refsim.layouts": "fragment fragments swizzle swizzles scale_layout tile tensor_map bank_conflicts descriptor walk",
    "refsim.testing": "Bounded Kernel Launcher Promise run_campaign strategies",
    "refsim.ptx": "Program Trace GlobalMemory load",
    "refsim.device": "Device open",
    "refsim.files": "load load_all save save_all",
    "refsim.scaling": "block_format dequantize",
}
"""Names that users look for in `refsim`, by the module that has them."""


class MissingNameError(AttributeError):
    """A name that a package lacks. Its text, built on demand, says where the name is or which names are close.

    Python itself raises this error, and ignores it, for each module of a package in `from package import module`.
    """

    def __init__(self, package: str, name: str, known: Sequence[str]) -> None:
        super().__init__(package, name, known, name=name)
        self.package, self.missing, self.known = package, name, known  # pickles of tblib leave out `name`

    def __str__(self) -> str:
        return f"module {self.package!r} has no attribute {self.missing!r}: {self.way_out()}"

    def way_out(self) -> str:
        name = str(self.missing)
        american = re.sub(r"(?<=[a-z])ise$", "ize", name)
        for spelled in dict.fromkeys((name, american, f"{american}s", american.removesuffix("s"))):
            for module, names in _ELSEWHERE.items():
                if spelled in names.split() and module != self.package:
                    return f"it is {module}.{spelled}"
            if spelled in self.known:
                return f"{self.package}.{spelled} is meant"
        return f"nearest: {', '.join(f'{self.package}.{each}' for each in nearest(name, [*self.known]))}"
