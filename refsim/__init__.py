"""refsim: bit-exact tests of low-precision GPU kernels, on a GPU or without one.

Names are loaded when first used: `import refsim` itself imports nothing heavy.
"""

from typing import TYPE_CHECKING

__version__ = "0.2.0.dev0"
__all__ = [
    "BF16",
    "E2M1",
    "E2M3",
    "E3M2",
    "E4M3",
    "E4M3FNUZ",
    "E5M2",
    "E5M2FNUZ",
    "E8M0",
    "F16",
    "F32",
    "FORMATS",
    "MXINT8",
    "TF32",
    "UE4M3",
    "UE5M3",
    "Format",
    "RefsimError",
    "__version__",
    "causes",
    "compare",
    "convert",
    "decode",
    "device",
    "encode",
    "files",
    "layouts",
    "numerics",
    "oracles",
    "pack",
    "ptx",
    "quantize",
    "scaling",
    "testing",
    "unpack",
]

if TYPE_CHECKING:
    from refsim import causes, compare, device, files, layouts, numerics, oracles, ptx, scaling, testing
    from refsim.conversions import convert, decode, encode, pack, unpack
    from refsim.errors import RefsimError
    from refsim.formats import BF16, E2M1, E2M3, E3M2, E4M3, E4M3FNUZ, E5M2, E5M2FNUZ, E8M0, F16, F32

    # isort: split
    from refsim.formats import FORMATS, MXINT8, TF32, UE4M3, UE5M3, Format
    from refsim.scaling.blocks import quantize
else:
    from refsim.lazy import exports

    __getattr__, __dir__ = exports(
        __name__,
        {
            "refsim.conversions": ("convert", "decode", "encode", "pack", "unpack"),
            "refsim.errors": ("RefsimError",),
            "refsim.scaling.blocks": ("quantize",),
            "refsim.formats": (
                "FORMATS",
                "Format",
                "E4M3",
                "E5M2",
                "E2M1",
                "E2M3",
                "E3M2",
                "E8M0",
                "UE4M3",
                "UE5M3",
                "E4M3FNUZ",
                "E5M2FNUZ",
                "MXINT8",
                "BF16",
                "F16",
                "TF32",
                "F32",
            ),
        },
        ("causes", "compare", "device", "files", "layouts", "numerics", "oracles", "ptx", "scaling", "testing"),
        ("__version__",),
    )
    del exports
