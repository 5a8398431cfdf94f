"""Values of the blocks of GGUF tensors: bytes (blocks, bytes of a block) become float64 (blocks, elements).

Source of every layout: GGUF, ggml-quants. Codes lie in halves: element i and element i + 16 of 32 share a byte.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from refsim.conversions import decode
from refsim.formats import E2M1, F16, UE4M3

Bytes = NDArray[np.uint8]
Values = NDArray[np.float64]
IQ4_NL = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.float64)


def _half(raw: Bytes) -> Values:
    """Return the float16 in two bytes of each block, as a column."""
    return np.asarray(decode(np.ascontiguousarray(raw).view("<u2").astype(np.uint16), F16, np.float64))


def _nibbles(raw: Bytes) -> Bytes:
    """Return the low halves of the bytes, then the high halves."""
    return np.concatenate([raw & 15, raw >> 4], axis=-1)


def _fifth(raw: Bytes) -> Bytes:
    """Return bit i of 32 as 16 for element i."""
    return np.unpackbits(raw, axis=-1, bitorder="little") << np.uint8(4)


def _pairs(raw: Bytes, size: int) -> Bytes:
    """Return codes of groups of `size` bytes: the low halves of a group, then its high halves."""
    return _nibbles(raw.reshape(len(raw), -1, size)).reshape(len(raw), -1)


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
    high = raw[:, None, 16:48] >> np.arange(8, dtype=np.uint8)[:, None] & np.uint8(1)
    return _of_k(raw, _pairs(raw[:, 48:], 32) | high.reshape(len(raw), 256) << np.uint8(4))


def _q6_k(raw: Bytes) -> Values:
    low = _pairs(raw[:, :128], 64)
    high = (raw[:, 128:192].reshape(-1, 2, 1, 32) >> np.arange(0, 8, 2, dtype=np.uint8)[:, None] & 3).reshape(-1, 256)
    codes = (low | high << 4).astype(np.float64) - 32
    scales = np.ascontiguousarray(raw[:, 192:208]).view(np.int8).astype(np.float64) * _half(raw[:, 208:])
    return (codes.reshape(-1, 16, 16) * scales[..., None]).reshape(-1, 256)


def _nvfp4(raw: Bytes) -> Values:
    """Return values of four groups of 16; ggml reads the scale 0x7f as 0, and 0xff as 480."""
    low = raw[:, :4] & 127
    scales = np.where(low == 127, np.where(raw[:, :4] == 127, 0, 480), decode(low, UE4M3, np.float64))
    codes = np.asarray(decode(_pairs(raw[:, 4:], 8), E2M1, np.float64)).reshape(-1, 4, 16)
    return np.asarray((codes * scales[..., None]).reshape(-1, 64), np.float64)


def _mxfp4(raw: Bytes) -> Values:
    """Return values of 32; ggml has no NaN among the powers of two."""
    codes = decode(_nibbles(raw[:, 1:]), E2M1, np.float64)
    return np.asarray(codes * np.exp2(raw[:, :1].astype(np.float64) - 127), np.float64)


DECODERS: dict[str, Callable[[Bytes], Values]] = {
    "Q4_0": lambda raw: _half(raw[:, :2]) * (_nibbles(raw[:, 2:]).astype(np.float64) - 8),
    "Q4_1": lambda raw: _half(raw[:, :2]) * _nibbles(raw[:, 4:]) + _half(raw[:, 2:4]),
    "Q5_0": lambda raw: _half(raw[:, :2]) * ((_nibbles(raw[:, 6:]) | _fifth(raw[:, 2:6])).astype(np.float64) - 16),
    "Q5_1": lambda raw: _half(raw[:, :2]) * (_nibbles(raw[:, 8:]) | _fifth(raw[:, 4:8])) + _half(raw[:, 2:4]),
    "Q8_0": lambda raw: _half(raw[:, :2]) * np.ascontiguousarray(raw[:, 2:]).view(np.int8),
    "Q4_K": lambda raw: _of_k(raw, _pairs(raw[:, 16:], 32)),
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
    "MXFP4": _mxfp4,
    "IQ4_NL": lambda raw: _half(raw[:, :2]) * IQ4_NL[_nibbles(raw[:, 2:])],
    "NVFP4": _nvfp4,
}
