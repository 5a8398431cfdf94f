"""Names of a package that load when first used, so that importing the package imports nothing heavy."""

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from opcode import opmap
from typing import Any

from refsim.errors import nearest

_IMPORT_FROM = opmap[
    "IMPORT_FROM"
]  # Python would replace an AttributeError of `from package import name` with its own text


def exports(
    package: str, homes: Mapping[str, Sequence[str]], modules: Sequence[str] = (), own: Sequence[str] = ()
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` of a package; `homes` maps modules to their names, `modules` are submodules.

    `own` are names that the package itself defines. A type checker must not see the result, because every misspelled
    name would have type Any: packages assign it under `if not TYPE_CHECKING`.
    """
    home_of = {name: home for home, names in homes.items() for name in names}

    def load(name: str) -> Any:
        if name in home_of:
            return getattr(import_module(home_of[name]), name)
        if name in modules:
            return import_module(f"{package}.{name}")
        error, caller = MissingNameError(package, name, [*own, *home_of, *modules]), sys._getframe(1)
        if caller.f_code.co_code[caller.f_lasti] == _IMPORT_FROM and f"{package}.{name}" not in sys.modules:
            raise ImportError(f"cannot import name {name!r} from {package!r}: {error.way_out()}", name=package)
        raise error

    return load, lambda: sorted([*own, *home_of, *modules])


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
