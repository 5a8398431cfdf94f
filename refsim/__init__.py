"""refsim: the golden model for low-precision GPU kernels, and the framework that proves kernels against it.

Names are loaded when first used: `import refsim` itself imports nothing heavy.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOMES = {
    "refsim.conversions": ("convert", "decode", "encode", "pack", "unpack"),
    "refsim.errors": ("RefsimError",),
    "refsim.formats": (
        "FORMATS", "Format", "E4M3", "E5M2", "E2M1", "E2M3", "E3M2", "E8M0", "UE4M3", "UE5M3", "E4M3FNUZ", "E5M2FNUZ",
        "MXINT8", "BF16", "F16", "TF32", "F32",
    ),
}  # fmt: skip
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}
_MODULES = ("compare", "device", "files", "layouts", "numerics", "oracles", "ptx", "testing")

__all__ = ["__version__", *_HOME_OF, *_MODULES]  # pyright: ignore[reportUnsupportedDunderAll]

if TYPE_CHECKING:
    from refsim import compare, device, files, layouts, numerics, oracles, ptx, testing
    from refsim.conversions import convert, decode, encode, pack, unpack
    from refsim.errors import RefsimError
    from refsim.formats import (
        BF16,
        E2M1,
        E2M3,
        E3M2,
        E4M3,
        E4M3FNUZ,
        E5M2,
        E5M2FNUZ,
        E8M0,
        F16,
        F32,
        FORMATS,
        MXINT8,
        TF32,
        UE4M3,
        UE5M3,
        Format,
    )


def __getattr__(name: str) -> Any:
    if name in _HOME_OF:
        return getattr(import_module(_HOME_OF[name]), name)
    if name in _MODULES:
        return import_module(f"refsim.{name}")
    raise AttributeError(f"module 'refsim' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
