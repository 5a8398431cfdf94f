"""An order in which a kernel takes an input is named, for kernels that are functions of NumPy."""

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from refsim.testing.suspects.budget import Budget
from refsim.testing.suspects.rearranged import rearranged
from refsim.testing.suspects.suspicion import FRAGMENT

Array = Any
ROWS, COLUMNS, GROUP = 64, 64, 16
AWQ = [0, 2, 4, 6, 1, 3, 5, 7]
PLACES = np.indices((ROWS, COLUMNS))


class FakeDiet:
    """What `rearranged` asks of a kernel: `computed` of its inputs, of which `mistake` changes the input `name`."""

    def __init__(self, name: str, mistake: Callable[[Array], Array], computed: Callable[..., Array], ptx: str = ""):
        self.name, self.mistake, self.computed = name, mistake, computed
        self.device = SimpleNamespace(program=SimpleNamespace(text=ptx))
        self.kernel = SimpleNamespace(output_formats=lambda seed: {"y": "f32"})

    def uploads(self, seed: int) -> dict[str, Array]:
        random = np.random.default_rng(seed)
        return {
            "x": random.integers(1, 1 << 15, (ROWS, COLUMNS)).astype(np.uint16),
            "scale": random.uniform(1, 2, (ROWS, COLUMNS // GROUP)).astype(np.float32),
            "packed": random.integers(0, 1 << 32, (ROWS, COLUMNS // 8), np.uint32),
        }

    def ran(self, given: Mapping[str, Array]) -> dict[str, Array]:
        taken = {name: self.mistake(each) if name == self.name else each for name, each in given.items()}
        return {"y": self.computed(**taken)}

    def outputs(self, seed: int) -> dict[str, Array]:
        return self.ran(self.uploads(seed))

    def fed(self, seed: int, changed: Callable[[str, Array], Array]) -> dict[str, Array]:
        return self.ran({name: changed(name, each) for name, each in self.uploads(seed).items()})

    def wrong(self, seed: int, outputs: Mapping[str, Array] | None = None) -> dict[str, Array]:
        return {"y": (self.outputs(seed) if outputs is None else outputs)["y"] != self.computed(**self.uploads(seed))}


def products(x: Array, scale: Array, packed: Array) -> Array:
    """Elements times their nibble and the scale of their group of columns."""
    nibbles = packed[..., None] >> np.arange(0, 32, 4, dtype=np.uint32) & 15
    return x.astype(np.float32) * scale.repeat(GROUP, 1) * (1 + nibbles.reshape(ROWS, COLUMNS))


def quotients(x: Array, scale: Array, packed: Array) -> Array:
    """Elements divided by the largest of their group."""
    return (x.reshape(ROWS, -1, GROUP) / x.reshape(ROWS, -1, GROUP).max(-1, keepdims=True)).reshape(x.shape)


def crossed(row: int, column: int) -> Callable[[Array], Array]:
    """Return the exchange of a bit of the row with a bit of the column."""
    apart = (PLACES[0] >> row & 1) ^ (PLACES[1] >> column & 1)
    return lambda x: x[PLACES[0] ^ apart << row, PLACES[1] ^ apart << column]


def in_row(low: int, high: int) -> Callable[[Array], Array]:
    at = np.arange(COLUMNS)
    apart = (at >> low & 1) ^ (at >> high & 1)
    return lambda x: x[:, at ^ apart << low ^ apart << high]


def nibbles(order: list[int]) -> Callable[[Array], Array]:
    """Return the change of words after which nibble i is the one that was at order[i]."""
    return lambda words: sum((words >> np.uint32(4 * of) & 15) << np.uint32(4 * at) for at, of in enumerate(order))


def lines(order: Array, axis: int = 0) -> Callable[[Array], Array]:
    return lambda x: np.take(x, order, axis)


AT, FOUR = np.arange(ROWS), np.arange(4)
CHUNK = PLACES[1] ^ (PLACES[0] % 8) * 8
OTHER, PLACE = "elements of another place", "elements permuted"
ORDERS: list[tuple[str, Callable[[Array], Array], str, str]] = [
    ("x", lambda x: x.T, "transposed", "it is read as its transpose"),
    (
        "x",
        lambda x: x.reshape(8, 8, 8, 8).transpose(0, 3, 2, 1).reshape(x.shape),
        "transposed",
        "each block of 8 x 8 is read as its transpose",
    ),
    ("x", lines(AT ^ 8), "rows exchanged", "rows 8 apart are exchanged"),
    ("x", lines(AT ^ 8, 1), FRAGMENT, "neighbouring runs of 16 bytes of each row are exchanged"),
    ("x", lines(AT ^ 1, 1), FRAGMENT, "neighbouring runs of 2 bytes of each row are exchanged"),
    ("x", crossed(3, 3), FRAGMENT, "bit 3 of the row and bit 4 of the byte in the row are exchanged"),
    ("x", crossed(0, 2), FRAGMENT, "bit 0 of the row and bit 3 of the byte in the row are exchanged"),
    ("x", in_row(0, 2), PLACE, "bits 0 and 2 of the element's index in the row are exchanged"),
    ("x", lambda x: x[PLACES[0], CHUNK], "swizzle not undone", "chunk c of row r at c ^ (r >> 0) % 8, 16 bytes each"),
    ("scale", lines(np.roll(AT.reshape(-1, 4), -1, 1).reshape(-1)), OTHER, "the next row of every 4 is taken"),
    ("scale", lines(np.roll(FOUR, 1), 1), OTHER, "the previous element of every 4 is taken"),
    ("scale", lines(AT[::-1]), OTHER, "rows are taken in reverse"),
    ("scale", lines(AT ^ 4), OTHER, "those of rows 4 apart are exchanged"),
    ("scale", lines(AT // 2 * 2), OTHER, "those of rows 1 apart are taken, for some elements and not for all"),
    ("scale", lines(AT // 2), OTHER, "a row is taken for 2, as if groups were 2 times as large"),
    ("scale", lines(AT // 4), OTHER, "a row is taken for 4, as if groups were 4 times as large"),
    ("scale", lines(FOUR // 2, 1), OTHER, "a column is taken for 2, as if groups were 2 times as large"),
    ("scale", lines(FOUR // 2 * 2, 1), OTHER, "those of elements 1 apart are taken, for some elements and not for all"),
    ("scale", lines(AT & ~9 | AT >> 3 & 1 | (AT & 1) << 3), PLACE, "bits 2 and 5 of the index are exchanged"),
    ("scale", np.negative, "sign", "each number is taken with the other sign"),
    (
        "packed",
        nibbles([1, 0, 3, 2, 5, 4, 7, 6]),
        "order of codes in a byte",
        "the two nibbles of each byte are exchanged",
    ),
    (
        "packed",
        nibbles(AWQ),
        "order of codes",
        "the nibbles of each word are taken in the order of AWQ, not as they lie",
    ),
    ("packed", nibbles([*range(7, -1, -1)]), "order of codes", "taken from the highest down"),
    (
        "packed",
        nibbles([at ^ 4 for at in range(8)]),
        "order of codes",
        "the nibbles i and i ^ 4 of each word are exchanged",
    ),
    ("packed", np.ndarray.byteswap, "byte order", "the bytes of each word are taken from the highest down"),
]


@pytest.mark.parametrize(("name", "mistake", "suspect", "says"), ORDERS, ids=[says for *_, says in ORDERS])
def test_an_order_is_named(name: str, mistake: Callable[[Array], Array], suspect: str, says: str) -> None:
    diet = FakeDiet(name, mistake, products, ptx="mma.sync.aligned")
    found: Any = rearranged(diet, (1, 2, 3), budget=Budget(60.0))  # type: ignore[arg-type]
    assert found is not None
    assert (found.suspect, found.places, found.problems) == (suspect, (f"input {name}",), 3), str(found)
    assert says in found.says


def test_a_kernel_without_matrices_has_no_fragments() -> None:
    found: Any = rearranged(FakeDiet("x", crossed(3, 3), products), (1, 2, 3), budget=Budget(60.0))  # type: ignore[arg-type]
    assert found.suspect == PLACE


@pytest.mark.parametrize(
    "mistake",
    [lines(AT // 3 * 3), lines(np.roll(AT, 5)), lambda x: x + 1, lines(np.random.default_rng(0).permutation(ROWS))],
)
@pytest.mark.parametrize("name", ["x", "scale"])
def test_what_no_order_mends_is_not_named(name: str, mistake: Callable[[Array], Array]) -> None:
    assert rearranged(FakeDiet(name, mistake, products), (1, 2, 3), budget=Budget(60.0)) is None  # type: ignore[arg-type]


def test_a_group_that_takes_its_neighbours_scale() -> None:
    """The largest of the group beside, for one group of every two or for both."""

    def beside(x: Array, scale: Array, packed: Array, step: int = 1) -> Array:
        largest = x.reshape(ROWS, -1, GROUP).max(-1, keepdims=True)
        return (x.reshape(ROWS, -1, GROUP) / largest[:, np.arange(4) // 2 * 2]).reshape(x.shape)

    diet = FakeDiet("", np.copy, quotients)
    diet.ran = lambda given: {"y": beside(**given)}  # type: ignore[method-assign]
    diet.kernel.output_formats = lambda seed: {"y": "e4m3"}  # what is quantized
    found: Any = rearranged(diet, (1, 2, 3), budget=Budget(60.0))  # type: ignore[arg-type]
    assert (found.suspect, found.places) == ("scale group", ("input x",))
    assert found.says == "the scale of groups of 1 x 16 depends on another group: on their neighbour"
