"""Bank conflicts of shared memory: 32 banks of 4 bytes, phases of lanes, one 32-bit word per bank and wavefront."""

import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from refsim.errors import RefsimError
from refsim.integers import whole
from refsim.layouts.drawing import drawn
from refsim.layouts.families import Fragment
from refsim.layouts.holders import WARP
from refsim.layouts.swizzles import Swizzle
from refsim.layouts.tiles import Tile
from refsim.render.cards import Card
from refsim.sources import CUDA_GUIDE, Source

BANKS, BANK_BYTES = 32, 4
PHASE_BYTES = BANKS * BANK_BYTES
ROW_BYTES = 16  # of a matrix of ldmatrix
WIDTHS = (1, 2, 4, 8, 16)
SOURCE: Source = CUDA_GUIDE["shared memory: 32 banks, 64- and 128-bit accesses by half and quarter warps"]

_VECTOR = re.compile(r"(?:ld|st)\.shared(?:::cta)?(?:\.v([24]))?\.[a-z]+?(8|16|32|64|128)(?:x2)?")
_MATRIX = re.compile(r"(?:ld|st)matrix\.(m8n8|m8n16|m16n8|m16n16)\.x([124])((?:\.[a-z0-9_]+)*)")


@dataclass(frozen=True)
class Collision:
    """Describe one bank that must give several 32-bit words in one phase.

    `words` are their byte addresses, and `lanes` the lanes that access each of them.
    """

    phase: int
    bank: int
    words: tuple[int, ...]
    lanes: tuple[tuple[int, ...], ...]


@drawn
@dataclass(frozen=True, repr=False)
class BankConflicts(Card):
    """Describe the cost of warp accesses: `wavefronts` (..., phases), at least `ideal` (phases,) each.

    `addresses` (..., lanes) and `width` are the access; a phase holds `phase_lanes` lanes.
    """

    addresses: NDArray[np.int64]
    width: int
    phase_lanes: int
    wavefronts: NDArray[np.int64]
    source: Source = SOURCE

    @property
    def ideal(self) -> NDArray[np.int64]:
        """Return the wavefronts of each phase without collisions: 1, as a phase accesses at most 128 bytes."""
        return np.ones(self.wavefronts.shape[-1], np.int64)

    @property
    def total(self) -> int:
        """Return the wavefronts of all accesses together."""
        return int(self.wavefronts.sum())

    @property
    def excess(self) -> float:
        """Return total / ideal - 1: 0 without conflicts, 7 for an 8-way conflict in every phase."""
        return self.total / self.wavefronts.size - 1 if self.wavefronts.size else 0.0

    def wanted(self, access: int = 0) -> tuple[dict[int, dict[int, tuple[int, ...]]], ...]:
        """Return what an access (flat index) reads: for each phase, bank -> first byte of a 32-bit word -> its lanes.

        A phase takes as many wavefronts as its busiest bank has words: lanes 0 and 1 at bytes 0 and 128 are {0: {0:
        (0,), 128: (1,)}}, two wavefronts.
        """
        flat = self.addresses.reshape(-1, self.addresses.shape[-1])
        lanes = flat[int(whole("access", access, limit=len(flat)))].tolist()
        phases = []
        for first in range(0, self.wavefronts.shape[-1] * self.phase_lanes, self.phase_lanes):
            asked: dict[int, dict[int, tuple[int, ...]]] = {}
            for lane in range(first, min(len(lanes), first + self.phase_lanes)):
                end = lanes[lane] + max(self.width, 1)
                for word in range(lanes[lane] // BANK_BYTES, (end - 1) // BANK_BYTES + 1):
                    of_bank = asked.setdefault(word % BANKS, {})
                    of_bank[word * BANK_BYTES] = (*of_bank.get(word * BANK_BYTES, ()), lane)
            phases.append(asked)
        return tuple(phases)

    def collisions(self, access: int = 0) -> tuple[Collision, ...]:
        """Return the colliding lanes of one access (flat index), in order of phase and bank."""
        return tuple(
            Collision(phase, bank, tuple(sorted(words)), tuple(words[word] for word in sorted(words)))
            for phase, asked in enumerate(self.wanted(access))
            for bank, words in sorted(asked.items())
            if len(words) > 1
        )

    def _repr_summary(self) -> str:
        return str(self)

    def __str__(self) -> str:
        accesses = self.wavefronts[..., 0].size
        asked = f"{accesses} access{'es' * (accesses > 1)} of {self.width} bytes a lane"
        needed = f"{self.total} wavefront{'s' * (self.total != 1)}"
        return f"{needed} for {asked}, {self.wavefronts.size} without conflicts"


def bank_conflicts(addresses: ArrayLike, width: int | str = 16) -> BankConflicts:
    """Return the wavefronts of warp accesses to shared memory, by phase, and the colliding lanes.

    `addresses` (..., lanes): the byte address of each of up to 32 active lanes; leading axes are separate accesses.
    `width` in bytes a lane, or an instruction ("ld.shared.v4.b32", "ldmatrix.m8n8.x4.b16": 16 lanes ... 32 lanes).
    Accesses of 16 bytes are served 8 lanes at a time, of 8 bytes 16 lanes, of up to 4 bytes all 32. A phase takes as
    many wavefronts as the most distinct 32-bit words that any one bank must give; lanes that access one word share it.
    8 rows of 128 bytes, one 16-byte chunk each, without swizzle: 8 wavefronts; with swizzle 128B: 1. An H200 was faster
    in one case: 8- and 16-byte loads whose lanes 2i and 2i + 1 share an address take half as many.
    Raises RefsimError for misaligned addresses, more than 32 lanes and unknown instructions.
    bank_conflicts(np.arange(32) * 128, 4).total is 32.
    Source: CUDA C++ Programming Guide, shared memory; the phases of wide accesses as an H200 counts them.
    """
    size = access_width(width) if isinstance(width, str) else width
    if size not in WIDTHS:
        raise RefsimError("bad-access", f"a lane accesses 1, 2, 4, 8 or 16 bytes, not {size}")
    lanes = np.atleast_1d(whole("address", addresses))
    if not 1 <= lanes.shape[-1] <= WARP:
        raise RefsimError("bad-access", f"a warp has 1 to {WARP} lanes, not {lanes.shape[-1]}", where="the last axis")
    if isinstance(width, str) and (rows := _matrix_rows(width)) not in (None, lanes.shape[-1]):
        raise RefsimError("bad-access", f"{width} takes {rows} row addresses, not {lanes.shape[-1]}")
    if (lanes % size).any():
        wrong = int(lanes[lanes % size != 0].flat[0])
        raise RefsimError("bad-access", f"address {wrong} is not a multiple of the {size} bytes of the access")
    phase_lanes = min(WARP, PHASE_BYTES // max(size, BANK_BYTES))
    return BankConflicts(lanes, size, phase_lanes, _wavefronts(lanes, size, phase_lanes))


def access_width(instruction: str) -> int:
    """Return the bytes that a lane accesses at once: 16 for ld.shared.v4.b32 and for rows of ldmatrix and stmatrix.

    access_width("ld.shared.v4.b32") is 16. Raises RefsimError `unknown-instruction`. Source: PTX ISA, vectors and
    ldmatrix.
    """
    if _matrix_rows(instruction) is not None:
        return 16
    match = _VECTOR.fullmatch(instruction)
    if match is None:
        help = "ld.shared.v4.b32, st.shared.b64, ldmatrix.m8n8.x4.b16, stmatrix.m16n8.x2.trans.b8"
        raise RefsimError("unknown-instruction", f"{instruction!r} is not a known shared-memory access", help=help)
    elements = int(match[1] or 1)
    packed = 2 if instruction.endswith("x2") else 1
    return elements * int(match[2]) * packed // 8


def layout_conflicts(fragment: Fragment, tile: Tile, width: int | None = None, start: int = 0) -> BankConflicts:
    """Return the cost of warp accesses in which each thread reads its values of `fragment` straight from `tile`.

    `width` bytes at a time (default: one element), so width / element_bytes values that must be neighbors in the tile.
    The result's axes are (warp, group of values, phase). Raises RefsimError if the values of a group do not lie side by
    side. mma A fragments of bf16 from a 128B-swizzled tile, 4 bytes at a time: 1 wavefront each.
    layout_conflicts(fragment("mma.m16n8k16.bf16.a"), tile("K", "128B", 2, (16, 64)), 4).excess is 0.
    Source: as `bank_conflicts`.
    """
    size = tile.element_bytes if width is None else width
    per = size // tile.element_bytes
    if per < 1 or fragment.values % per or fragment.threads % WARP:
        what = f"{fragment.values} values of {tile.element_bytes} bytes are not taken {size} at a time"
        raise RefsimError("bad-access", what)
    held = fragment.coord(np.arange(fragment.threads)[:, None], np.arange(fragment.values)[None, :])
    places = tile.address(*held, start=start).reshape(fragment.threads // WARP, WARP, fragment.values // per, per)
    if (np.diff(places, axis=-1) != tile.element_bytes).any():
        raise RefsimError("bad-access", f"the values that {size} bytes would hold do not lie side by side")
    return bank_conflicts(places[..., 0].swapaxes(1, 2), size)


def matrix_conflicts(
    rows: int, shape: tuple[int, int], element_bits: int, swizzle: Swizzle | None = None, start: int = 0
) -> BankConflicts:
    """Return the cost of ldmatrix or stmatrix: each of `rows` lanes addresses 16 bytes in a tile of `shape` elements.

    The rows of the tile follow each other in memory, bytes swizzled where a swizzle is given. Lanes go down the tile,
    then to the next 16 bytes of its rows, as kernels load A: matrix 1 of ldmatrix.x4 from 16 rows lies below matrix 0.
    matrix_conflicts(32, (16, 64), 16).total is 32, with swizzle 128B 4. Raises RefsimError `bad-access`.
    Source: as `bank_conflicts`.
    """
    down, pitch = min(rows, shape[0]), shape[1] * element_bits // 8
    if rows % down or down % 8 or pitch % ROW_BYTES or rows // down * ROW_BYTES > pitch:
        what = f"{rows} rows of {ROW_BYTES} bytes are not taken from {shape[0]} rows of {pitch} bytes"
        rule = "a tile has a multiple of 8 rows, each a multiple of 16 bytes; the matrices lie within it"
        raise RefsimError("bad-access", what, rule=rule)
    lane = np.arange(rows)
    addresses = start + lane % down * pitch + lane // down * ROW_BYTES
    return bank_conflicts(addresses if swizzle is None else swizzle(addresses), ROW_BYTES)


def _matrix_rows(instruction: str) -> int | None:
    match = _MATRIX.fullmatch(instruction)
    return None if match is None else int(match[2]) * (16 if match[1] == "m16n16" else 8)


def _wavefronts(lanes: NDArray[np.int64], width: int, phase_lanes: int) -> NDArray[np.int64]:
    """Return the wavefronts (..., phases) of accesses: the most 32-bit words that one bank gives in a phase."""
    phases = -(-lanes.shape[-1] // phase_lanes)
    words = lanes[..., None] // BANK_BYTES + np.arange(max(1, width // BANK_BYTES))
    padding = phases * phase_lanes - lanes.shape[-1]
    if padding:  # absent lanes repeat the access of the last lane, which costs nothing
        words = np.concatenate([words, np.repeat(words[..., -1:, :], padding, axis=-2)], axis=-2)
    row = phase_lanes * words.shape[-1]
    grouped = np.sort(words.reshape(*lanes.shape[:-1], phases, row), axis=-1).reshape(-1, row)
    first = np.ones(grouped.shape, bool)
    first[:, 1:] = grouped[:, 1:] != grouped[:, :-1]
    bank = grouped % BANKS + np.arange(len(grouped))[:, None] * BANKS
    counts = np.bincount(bank[first], minlength=len(grouped) * BANKS).reshape(len(grouped), BANKS)
    return np.asarray(counts.max(axis=1).reshape(*lanes.shape[:-1], phases), np.int64)
