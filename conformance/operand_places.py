"""From which bytes wgmma reads an operand: the words that a recording asks for, and the reading of the answers.

Shared memory holds the number of each slot, one digit a launch. The other operand is an identity, so D is the operand.
"""

import zlib
from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.kernels import Launcher
from refsim.layouts.tiles import K, Major
from refsim.silicon.operand_starts import FURTHER, REGION, START_FORMS, SWIZZLE_CODES, StartForm, Words, word
from refsim.silicon.tensor_probe import coded

CHUNK, NOWHERE, DIGIT = 16, 0xFFFF, 4
PLAIN = 128 >> 4 << 16 | 256 >> 4 << 32
"""A descriptor: K-major without a swizzle, core matrices next to each other."""
Places = NDArray[np.uint16]


def single_forms() -> Iterator[tuple[str, StartForm, str, str]]:
    """Yield (name, form, side, swizzle) of every recording of one operand; the other one is K-major."""
    for form, side, name in product(START_FORMS, "ab", SWIZZLE_CODES):
        if form.majors["ab".index(side) ^ 1] == K:
            yield f"{form.name}.{side}.{name}", form, side, name


def single_words(swizzle: str) -> Words:
    """Return the descriptors of one operand: every start below 1024 with every base_offset, then atoms further apart, and
    strides of 0."""
    words = [word(swizzle, start, base) for start, base in product(range(0, 1024, CHUNK), range(8))]
    for further, start, base in product(FURTHER, (0, 128, 256, 640, 16, 112, 912), (0, 3, 4)):
        words += [word(swizzle, start, base, more=more) for more in ((further, 0), (0, further))]
    return np.array(words, np.uint64)


def places(launcher: Launcher, form: StartForm, side: str, words: Words) -> Places:
    """Return the byte in the region at which each 16-byte chunk of an operand begins: (cases, 128), row by row, or k by k
    if it is MN-major. NOWHERE for a chunk that is not read in one piece."""
    slots, plain = np.arange(REGION // form.bytes), np.full(len(words), PLAIN, np.uint64)
    pairs = np.stack([words, plain] if side == "a" else [plain, words], 1)
    identity, k = coded(_identity(form), form.holds), 32 // form.bytes
    found = np.zeros((len(words), 64, k), np.int64)
    for shift in range(0, int(slots[-1]).bit_length(), DIGIT):
        digits = coded((slots >> shift & (1 << DIGIT) - 1).astype(np.float64), form.holds)
        held = (digits, identity) if side == "a" else (identity, digits)
        d = form.products(launcher, pairs, held, f"_{side}{shift}")
        found |= (d if side == "a" else d.swapaxes(1, 2))[:, :, :k].astype(np.int64) << shift
    return _chunks(found * form.bytes, form, form.majors[side == "b"])


def addresses(form: StartForm, side: str, words: Words) -> Places:
    """Return what `places` must return, by the model of descriptors."""
    return _chunks(form.elements(side, words), form, form.majors[side == "b"])


def crcs(products: NDArray[np.float32]) -> NDArray[np.uint32]:
    """Return the CRC-32 of each product."""
    return np.array([zlib.crc32(np.ascontiguousarray(each).tobytes()) for each in products], np.uint32)


def _chunks(found: NDArray[np.int64], form: StartForm, major: Major) -> Places:
    lines = found if major == K else found.swapaxes(1, 2)
    held = lines.reshape(len(found), -1, CHUNK // form.bytes)
    whole = (held == held[:, :, :1] + np.arange(held.shape[2]) * form.bytes).all(axis=2)
    return np.where(whole, held[:, :, 0], NOWHERE).astype(np.uint16)


def _identity(form: StartForm) -> NDArray[Any]:
    """Return the region of a plain operand whose element (i, i) is 1."""
    at = np.arange(32 // form.bytes)
    byte = at // 8 * 256 + at * form.bytes // CHUNK * 128 + at % 8 * CHUNK + at * form.bytes % CHUNK
    region = np.zeros(REGION // form.bytes)
    region[byte // form.bytes] = 1
    return region
