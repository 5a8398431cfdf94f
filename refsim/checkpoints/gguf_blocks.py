"""Values of the blocks of GGUF tensors: bytes (blocks, bytes of a block) become float64 (blocks, elements).

Source of every layout: GGUF, ggml-quants. Codes lie in halves: element i and element i + 16 of 32 share a byte.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.conversions import decode
from refsim.conversions.packing import bit_fields
from refsim.formats import E2M1, F16, UE4M3

Bytes = NDArray[np.uint8]
Values = NDArray[np.float64]
IQ4_NL = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.float64)


def _half(raw: Bytes) -> Values:
    """Return the float16 in two bytes of each block, as a column."""
    return np.asarray(decode(np.ascontiguousarray(raw).view("<u2").astype(np.uint16), F16, np.float64))


def _fifth(raw: Bytes) -> Bytes:
    """Return bit i of 32 as 16 for element i."""
    return bit_fields(raw, 1, 32) << np.uint8(4)


def _fields(raw: Bytes, size: int = 16, bits: int = 4) -> Bytes:
    """Return codes of groups of `size` bytes: the lowest bits of a group, then the next ones."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)[:, None]
    found = raw.reshape(len(raw), -1, 1, size) >> shifts & np.uint8((1 << bits) - 1)
    return np.asarray(found.reshape(len(raw), -1))


def _scaled(codes: NDArray[Any], scales: NDArray[Any], factor: Values) -> Values:
    """Return codes times the scale of their group times the factor of the block."""
    groups = scales.shape[1]
    found = (factor * scales)[..., None] * codes.reshape(len(codes), groups, -1)
    return np.asarray(found.reshape(len(codes), -1), np.float64)


def _sixes(raw: Bytes) -> tuple[Values, Values]:
    """Return eight scales and eight minima of 6 bits out of 12 bytes."""
    low, high, both = raw[:, :4], raw[:, 4:8], raw[:, 8:]
    scales = np.concatenate([low & 63, both & 15 | low >> 6 << 4], axis=1)
    minima = np.concatenate([high & 63, both >> 4 | high >> 6 << 4], axis=1)
    return scales.astype(np.float64), minima.astype(np.float64)


def _of_k(raw: Bytes, codes: Bytes) -> Values:
    """Return values of Q4_K and Q5_K: scale and minimum of each 32."""
    scales, minima = _sixes(raw[:, 4:16])
    grouped = codes.reshape(len(raw), 8, 32).astype(np.float64)
    found = (_half(raw[:, :2]) * scales)[..., None] * grouped - (_half(raw[:, 2:4]) * minima)[..., None]
    return found.reshape(len(raw), 256)


def _q5_k(raw: Bytes) -> Values:
    return _of_k(raw, _fields(raw[:, 48:], 32) | _fields(raw[:, 16:48], 32, 1) << np.uint8(4))


def _q6_k(raw: Bytes) -> Values:
    codes = _fields(raw[:, :128], 64) | _fields(raw[:, 128:192], 32, 2) << np.uint8(4)
    scales = np.ascontiguousarray(raw[:, 192:208]).view(np.int8).astype(np.float64)
    return _scaled(codes.astype(np.float64) - 32, scales, _half(raw[:, 208:]))


def _q2_k(raw: Bytes) -> Values:
    codes = _scaled(_fields(raw[:, 16:80], 32, 2), raw[:, :16] & 15, _half(raw[:, 80:82]))
    return codes - _scaled(np.ones((len(raw), 256)), raw[:, :16] >> 4, _half(raw[:, 82:]))


def _q3_k(raw: Bytes) -> Values:
    """Return values of Q3_K: a bit that is missing in the mask subtracts 4."""
    low = _fields(raw[:, 96:104], 8) | _fields(raw[:, 104:108], 4, 2) << np.uint8(4)
    codes = _fields(raw[:, 32:96], 32, 2).astype(np.float64) - 4 * (1 - _fields(raw[:, :32], 32, 1).astype(np.float64))
    return _scaled(codes, low.astype(np.float64) - 32, _half(raw[:, 108:]))


def _iq4_xs(raw: Bytes) -> Values:
    high = bit_fields(raw[:, 2:4], 2, 8) << np.uint8(4)
    scales = (bit_fields(raw[:, 4:8], 4, 8) | high).astype(np.float64) - 32
    return _scaled(IQ4_NL[_fields(raw[:, 8:], 16)], scales, _half(raw[:, :2]))


def _tq1_0(raw: Bytes) -> Values:
    """Return values of TQ1_0: five digits of base 3 a byte, the byte being a fraction of 256."""
    powers = np.array([1, 3, 9, 27, 81], np.uint8)[:, None]
    groups = ((raw[:, :32], 5), (raw[:, 32:48], 5), (raw[:, 48:52], 4))
    digits = [(each[:, None] * powers[:count]).reshape(len(raw), -1) for each, count in groups]
    return _half(raw[:, 52:]) * ((np.concatenate(digits, axis=1).astype(np.float64) * 3 // 256) - 1)


def _nvfp4(raw: Bytes) -> Values:
    """Return values of four groups of 16; ggml reads the scale 0x7f as 0, and 0xff as 480."""
    low = raw[:, :4] & 127
    scales = np.where(low == 127, np.where(raw[:, :4] == 127, 0, 480), decode(low, UE4M3, np.float64))
    codes = np.asarray(decode(_fields(raw[:, 4:], 8), E2M1, np.float64)).reshape(-1, 4, 16)
    return np.asarray((codes * scales[..., None]).reshape(-1, 64), np.float64)


def _mxfp4(raw: Bytes) -> Values:
    """Return values of 32; ggml has no NaN among the powers of two."""
    codes = decode(_fields(raw[:, 1:]), E2M1, np.float64)
    return np.asarray(codes * np.exp2(raw[:, :1].astype(np.float64) - 127), np.float64)


DECODERS: dict[str, Callable[[Bytes], Values]] = {
    "Q4_0": lambda raw: _half(raw[:, :2]) * (_fields(raw[:, 2:]).astype(np.float64) - 8),
    "Q4_1": lambda raw: _half(raw[:, :2]) * _fields(raw[:, 4:]) + _half(raw[:, 2:4]),
    "Q5_0": lambda raw: _half(raw[:, :2]) * ((_fields(raw[:, 6:]) | _fifth(raw[:, 2:6])).astype(np.float64) - 16),
    "Q5_1": lambda raw: _half(raw[:, :2]) * (_fields(raw[:, 8:]) | _fifth(raw[:, 4:8])) + _half(raw[:, 2:4]),
    "Q8_0": lambda raw: _half(raw[:, :2]) * np.ascontiguousarray(raw[:, 2:]).view(np.int8),
    "Q2_K": _q2_k,
    "Q3_K": _q3_k,
    "Q4_K": lambda raw: _of_k(raw, _fields(raw[:, 16:], 32)),
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
    "MXFP4": _mxfp4,
    "IQ4_NL": lambda raw: _half(raw[:, :2]) * IQ4_NL[_fields(raw[:, 2:])],
    "IQ4_XS": _iq4_xs,
    "TQ1_0": _tq1_0,
    "TQ2_0": lambda raw: _half(raw[:, 64:]) * (_fields(raw[:, :64], 32, 2).astype(np.float64) - 1),
    "NVFP4": _nvfp4,
}
