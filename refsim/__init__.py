"""refsim: bit-exact tests of low-precision GPU kernels, on a GPU or without one.

Names are loaded when first used: `import refsim` itself imports nothing heavy.
"""

from typing import TYPE_CHECKING

from refsim.lazy import exports

__version__ = "0.2.0.dev0"

if TYPE_CHECKING:
    from refsim import causes as causes
    from refsim import compare as compare
    from refsim import device as device
    from refsim import files as files
    from refsim import layouts as layouts
    from refsim import numerics as numerics
    from refsim import oracles as oracles
    from refsim import ptx as ptx
    from refsim import scaling as scaling
    from refsim import testing as testing
    from refsim.conversions import convert as convert
    from refsim.conversions import decode as decode
    from refsim.conversions import encode as encode
    from refsim.conversions import pack as pack
    from refsim.conversions import unpack as unpack
    from refsim.errors import RefsimError as RefsimError
    from refsim.formats import BF16 as BF16
    from refsim.formats import E2M1 as E2M1
    from refsim.formats import E2M3 as E2M3
    from refsim.formats import E3M2 as E3M2
    from refsim.formats import E4M3 as E4M3
    from refsim.formats import E4M3FNUZ as E4M3FNUZ
    from refsim.formats import E5M2 as E5M2
    from refsim.formats import E5M2FNUZ as E5M2FNUZ
    from refsim.formats import E8M0 as E8M0
    from refsim.formats import F16 as F16
    from refsim.formats import F32 as F32
    from refsim.formats import FORMATS as FORMATS
    from refsim.formats import MXINT8 as MXINT8
    from refsim.formats import TF32 as TF32
    from refsim.formats import UE4M3 as UE4M3
    from refsim.formats import UE5M3 as UE5M3
    from refsim.formats import Format as Format
    from refsim.scaling.blocks import quantize as quantize
else:
    __getattr__, __dir__ = exports(__name__, "__version__")
