"""Names of a package that are loaded when first used, so that importing the package imports nothing heavy."""

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any


def exports(
    package: str, homes: Mapping[str, Sequence[str]], modules: Sequence[str] = (), own: Sequence[str] = ()
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of a package: `homes` names the module of each name, `modules` are its own modules.

    `own` are names that the package itself defines. A type checker must not see the result, or every misspelt name is
    of type Any: packages assign it under `if not TYPE_CHECKING`.
    """
    home_of = {name: home for home, names in homes.items() for name in names}

    def load(name: str) -> Any:
        if name in home_of:
            return getattr(import_module(home_of[name]), name)
        if name in modules:
            return import_module(f"{package}.{name}")
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return load, lambda: sorted([*own, *home_of, *modules])
