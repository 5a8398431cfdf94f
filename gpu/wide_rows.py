"""Rows of bf16, f16 or f32 that quantisers read, and of codes that they write: where they lie and what stands between them."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from refsim.conversions import encode
from refsim.formats import format_named
from refsim.kernels import Buffer, Launcher
from refsim.testing.matrices import DRAWN_FILLS, Values
from refsim.testing.recipes import in_range, spelled

WIDE = ("bf16", "f16", "f32")
VECTORS, VECTOR_BYTES = 4, 16  # that a thread has in flight
FILLS = (*DRAWN_FILLS, "ties", "near-overflow")
NAN = {wide: int(encode(np.nan, wide)) | 1 for wide in WIDE}  # with a payload


@dataclass(frozen=True, repr=False)
class Placement:
    """Elements off the natural alignment, and elements between the rows, of X (NaN); bytes, of the codes."""

    x: int = 0
    q: int = 0
    x_gap: int = 0
    q_gap: int = 0

    def __post_init__(self) -> None:
        for name in ("x", "q", "x_gap", "q_gap"):
            in_range(name, getattr(self, name), 0, 64)

    def __repr__(self) -> str:
        return spelled(self)


CLOSE, ZEROS = Placement(), Values()


def placements() -> st.SearchStrategy[Placement]:
    few = st.sampled_from([0, 1, 4, 8])
    return st.builds(Placement, few, few, few, few)


def placement_of(number: int) -> Placement:
    """The one of a problem with that number: shifts and gaps change at different paces."""
    return Placement(number % 3 % 2, number % 5 % 2, 8 * (number % 2), 8 * (number % 2))


@dataclass(frozen=True)
class Rows:
    """X on a device and room for its codes; the first six `arguments` of every entry: both with their pitch, and X's shape."""

    arguments: tuple[Any, ...]
    q: Buffer
    before: NDArray[Any]

    def read(self, launcher: Launcher, row_bytes: int) -> tuple[NDArray[Any], NDArray[Any]]:
        """The codes of each row, and which bytes between the rows have changed."""
        after = launcher.read(self.q).reshape(self.before.shape)
        changed = (after != self.before)[:, row_bytes:].astype(np.uint8)
        return np.ascontiguousarray(after[:, :row_bytes]), changed


def place_rows(launcher: Launcher, codes: NDArray[Any], wide: str, row_bytes: int, place: Placement) -> Rows:
    """X of `codes` in the format `wide`, NaN between its rows, and a buffer for rows of `row_bytes`."""
    (rows, columns), size = codes.shape, format_named(wide).code_dtype.itemsize
    held = np.pad(codes, ((0, 0), (0, place.x_gap)), constant_values=NAN[wide]).reshape(-1)
    pitch = row_bytes + place.q_gap
    x = launcher.upload(held, name="x", misalign_bytes=place.x * size)
    q = launcher.output(rows * pitch, np.uint8, name="q", misalign_bytes=place.q)
    arguments = (x, np.uint64(columns + place.x_gap), q, np.uint64(pitch), np.uint32(rows), np.uint32(columns))
    return Rows(arguments, q, launcher.read(q).reshape(rows, pitch))
