"""The 128 bytes of a tensor map on the simulated GPU, which only it can read, as only a chip reads those of a driver.

They hold all parameters, with a checksum, so that a copy of them in constant, global or parameter memory means the same map.
"""

import struct
import zlib
from functools import lru_cache

from refsim.layouts.tma import (
    DATA_TYPES,
    INTERLEAVES,
    L2_PROMOTIONS,
    MAP_BYTES,
    OOB_FILLS,
    SWIZZLE_MODES,
    TensorMap,
)

_MAGIC = b"rs-tmap\0"
_FIELDS = struct.Struct("<8sQ5I4Q5B5B6B")
_SUM = struct.Struct("<I")
_RANKS = 5


def encoded(tensor_map: TensorMap) -> bytes:
    """The 128 bytes of a map: of two maps that differ in a parameter they differ too."""
    made = tensor_map
    rank = len(made.dims)
    choices = (
        (made.interleave, INTERLEAVES),
        (made.swizzle, SWIZZLE_MODES),
        (made.l2_promotion, L2_PROMOTIONS),
        (made.oob_fill, OOB_FILLS),
    )
    missing = _RANKS - rank
    raw = _FIELDS.pack(
        _MAGIC,
        made.address,
        *(extent - 1 for extent in made.dims),
        *[0] * missing,
        *made.strides,
        *[0] * (4 - len(made.strides)),
        *(extent - 1 for extent in made.box),
        *[0] * missing,
        *made.element_strides,
        *[1] * missing,
        rank,
        made.data_type.code,
        *(names.index(name) for name, names in choices),
    )
    padded = raw.ljust(MAP_BYTES - _SUM.size, b"\0")
    return padded + _SUM.pack(zlib.crc32(padded))


@lru_cache(maxsize=4096)
def decoded(raw: bytes) -> TensorMap | None:
    """The map that 128 bytes hold; None where they are none, or only a part of one."""
    padded, (checked,) = raw[: -_SUM.size], _SUM.unpack(raw[-_SUM.size :])
    if len(raw) != MAP_BYTES or not raw.startswith(_MAGIC) or zlib.crc32(padded) != checked:
        return None
    _, address, *numbers = _FIELDS.unpack_from(raw)
    dims, strides, box, steps, modes = numbers[:5], numbers[5:9], numbers[9:14], numbers[14:19], numbers[19:]
    rank, type_code, interleave, swizzle, promotion, fill = modes
    return TensorMap(
        DATA_TYPES[type_code],
        address,
        tuple(extent + 1 for extent in dims[:rank]),
        tuple(strides[: rank - 1]),
        tuple(extent + 1 for extent in box[:rank]),
        tuple(steps[:rank]),
        INTERLEAVES[interleave],
        SWIZZLE_MODES[swizzle],
        L2_PROMOTIONS[promotion],
        OOB_FILLS[fill],
    )
