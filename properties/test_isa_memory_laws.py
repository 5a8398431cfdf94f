"""Laws of loads, stores and atomics: bytes of Python for the first two, a loop over the lanes in order for the last."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refsim.errors import RefsimError
from refsim.reference import rational_float, single_instruction
from refsim.reference.instructions import words
from refsim.reference.rational_float import GRIDS
from refsim.testing.strategies import share

TYPES = ("b8", "b16", "b32", "b64", "u8", "u16", "u32", "u64", "s8", "s16", "s32", "s64", "f32", "f64")
READ, WRITTEN = ("global", "", "shared", "local", "const", "param"), ("global", "", "shared", "local")
POOL, LANES = 256, 40


def shapes(type: str) -> list[str]:
    """A type alone and in the vectors that it has: .v8.b32 and .v4.b64 take 32 bytes."""
    wide = {"32": [".v8"], "64": [".v4"]}.get(type[1:], []) if type != "b8" else []
    return ["", ".v2", *([".v4"] if type[1:] != "64" else []), *wide]


def opcode_of(mnemonic: str, space: str, vector: str, type: str) -> str:
    return f"{mnemonic}{space and f'.{space}'}{vector}.{type}"


def layout(opcode: str) -> tuple[int, int]:
    """Bytes of an element, and how many there are."""
    words_of = opcode.split(".")
    vector = next((word for word in words_of if word in ("v2", "v4", "v8")), "v1")
    return int(words_of[-1][1:]) // 8, int(vector[1:])


def pool_for(space: str, raw: np.ndarray) -> np.ndarray:
    """The pool's bytes: for local memory every lane has its own."""
    contents = np.resize(raw.view(np.uint8), POOL)
    return np.stack([np.roll(contents, lane) for lane in range(LANES)]) if space == "local" else contents


@pytest.mark.parametrize("space", READ)
@given(draw=st.data(), raw=words(POOL // 8), places=words(LANES))
def test_a_load_is_little_endian_bytes_extended_to_its_register(
    space: str, draw: st.DataObject, raw: np.ndarray, places: np.ndarray
) -> None:
    type = draw.draw(st.sampled_from(TYPES))
    vector = draw.draw(st.sampled_from(shapes(type)))
    opcode = opcode_of("ld", space, vector if space in ("global", "") else vector.replace(".v8", ".v4"), type)
    size, count = layout(opcode)
    if size * count == 32 and space not in ("global", ""):
        return
    register = draw.draw(st.sampled_from([bits for bits in (16, 32, 64) if bits >= size * 8]))
    pool, at = pool_for(space, raw), places % np.uint64(POOL // (size * count)) * np.uint64(size * count)
    ran = single_instruction.run(opcode, at, pool=pool, result_bits=register)
    for lane in range(LANES):
        mine = (pool[lane] if space == "local" else pool).tobytes()
        for place, element in enumerate(ran.results):
            start = int(at[lane]) + size * place
            value = int.from_bytes(mine[start : start + size], "little", signed=type[0] == "s")
            assert int(element[lane]) == value % (1 << register), (opcode, lane, place)


@pytest.mark.parametrize("space", WRITTEN)
@given(draw=st.data(), raw=words(POOL // 8), values=words(LANES), active=words(LANES))
def test_a_store_writes_the_low_bytes_of_its_registers_and_nothing_else(
    space: str, draw: st.DataObject, raw: np.ndarray, values: np.ndarray, active: np.ndarray
) -> None:
    """Every lane has a place of its own; lanes that do not run leave theirs alone."""
    type = draw.draw(st.sampled_from(TYPES))
    vector = draw.draw(st.sampled_from([shape for shape in shapes(type) if shape != ".v8" or space in ("global", "")]))
    opcode = opcode_of("st", space, vector, type)
    size, count = layout(opcode)
    if size * count == 32 and space not in ("global", ""):
        return
    runs = active % 3 != 0
    pool = np.zeros((LANES, 64), np.uint8) if space == "local" else np.resize(raw.view(np.uint8), LANES * 32)
    at = np.arange(LANES, dtype=np.uint64) * np.uint64(0 if space == "local" else 32)
    elements = [np.roll(values, place).astype(f"u{size}") for place in range(count)]
    ran = single_instruction.run(opcode, at, *elements, pool=pool, active=runs)
    want = pool.copy()
    for lane in np.flatnonzero(runs).tolist():
        row = want[lane] if space == "local" else want[32 * lane : 32 * lane + 32]
        row[: size * count] = np.frombuffer(b"".join(element[lane].tobytes() for element in elements), np.uint8)
    assert np.array_equal(ran.pool, want)


@pytest.mark.parametrize("opcode", ["ld.global.v4.b32", "st.global.v2.b64", "ld.shared.u16", "ld.global.v8.f32"])
def test_a_vector_must_be_aligned_to_its_whole_size(opcode: str) -> None:
    size, count = layout(opcode)
    values = [np.zeros(LANES, f"u{size}")] * count if opcode.startswith("st") else []
    at = np.zeros(LANES, np.uint64)
    at[7] = size * count // 2
    with pytest.raises(RefsimError) as caught:
        single_instruction.run(opcode, at, *values, pool=np.zeros(POOL, np.uint8))
    assert caught.value.code == "misaligned"
    assert "thread (7, 0, 0)" in str(caught.value)


def wrapped(bits: int, function: Callable[[int, int], int]) -> Callable[[int, int], int]:
    return lambda old, b: function(old, b) % (1 << bits)


def by_value(type: str, choose: Callable[..., int]) -> Callable[[int, int], int]:
    """min and max over the numbers that the patterns mean."""
    bits = int(type[1:])
    value = (lambda x: x - (1 << bits) if x >> (bits - 1) else x) if type[0] == "s" else (lambda x: x)
    return lambda old, b: choose((old, b), key=value)


def integer_updates() -> dict[str, Callable[[int, int], int]]:
    found: dict[str, Callable[[int, int], int]] = {
        "inc.u32": lambda old, b: 0 if old >= b else old + 1,
        "dec.u32": lambda old, b: b if old == 0 or old > b else old - 1,
    }
    for type in ("u32", "s32", "u64"):
        found[f"add.{type}"] = wrapped(int(type[1:]), lambda old, b: old + b)
    for type in ("u32", "s32", "u64", "s64"):
        found[f"min.{type}"], found[f"max.{type}"] = by_value(type, min), by_value(type, max)
    for type in ("b32", "b64"):
        found[f"and.{type}"], found[f"or.{type}"] = (lambda old, b: old & b), (lambda old, b: old | b)
        found[f"xor.{type}"], found[f"exch.{type}"] = (lambda old, b: old ^ b), (lambda old, b: b)
    return found


UPDATES = integer_updates()
SLOTS = 5


def sequential(
    pool: np.ndarray, at: list[int], size: int, update: Callable[..., int], operands: list[list[int]]
) -> tuple[list[int], bytes]:
    """Lane after lane: what each found, and the bytes that are left."""
    left, found = bytearray(pool.tobytes()), []
    for start, row in zip(at, zip(*operands, strict=True), strict=True):
        old = int.from_bytes(left[start : start + size], "little")
        found.append(old)
        left[start : start + size] = update(old, *row).to_bytes(size, "little")
    return found, bytes(left)


@pytest.mark.parametrize("space", ["global", "", "shared"])
@given(
    name=st.sampled_from(sorted(UPDATES)),
    raw=words(SLOTS),
    values=words(LANES),
    places=words(LANES),
    spread=st.integers(1, SLOTS),
)
def test_integer_atomics_are_updates_in_lane_order(
    space: str, name: str, raw: np.ndarray, values: np.ndarray, places: np.ndarray, spread: int
) -> None:
    """Few places for many lanes, so that lanes meet; red leaves the same memory."""
    size = int(name.split(".")[1][1:]) // 8
    at = places % np.uint64(spread) * np.uint64(8)
    pool, b = raw.view(np.uint8).copy(), values.astype(f"u{size}")
    found, left = sequential(pool, at.tolist(), size, UPDATES[name], [b.tolist()])
    ran = single_instruction.run(f"atom{space and f'.{space}'}.{name}", at, b, pool=pool)
    assert (ran.results[0].tolist(), ran.pool.tobytes()) == (found, left)
    if not name.startswith("exch"):
        assert single_instruction.run(f"red{space and f'.{space}'}.{name}", at, b, pool=pool).pool.tobytes() == left


@pytest.mark.parametrize("type", ["b16", "b32", "b64"])
@share(3 / 5)
@given(values=words(LANES), others=words(LANES), places=words(LANES), space=st.sampled_from(["global", "shared"]))
def test_compare_and_swap_in_lane_order(
    type: str, values: np.ndarray, others: np.ndarray, places: np.ndarray, space: str
) -> None:
    """Values 0 to 2, so that many comparisons hold."""
    size = int(type[1:]) // 8
    at = places % np.uint64(2) * np.uint64(8)
    b, c = (values % 3).astype(f"u{size}"), (others % 3).astype(f"u{size}")
    pool = np.zeros(16, np.uint8)
    found, left = sequential(
        pool, at.tolist(), size, lambda old, b, c: c if old == b else old, [b.tolist(), c.tolist()]
    )
    ran = single_instruction.run(f"atom.{space}.cas.{type}", at, b, c, pool=pool)
    assert (ran.results[0].tolist(), ran.pool.tobytes()) == (found, left)


def added(kind: str, *, ftz: bool = False) -> Callable[[int, int], int]:
    grid = GRIDS[kind]
    return lambda old, b: grid.encode(rational_float.add(grid.decode(old, ftz=ftz), grid.decode(b, ftz=ftz)), ftz=ftz)


def added_pairs(kind: str) -> Callable[[int, int], int]:
    one = added(kind)
    return lambda old, b: one(old & 0xFFFF, b & 0xFFFF) | one(old >> 16, b >> 16) << 16


SUMS = {
    "global.add.f32": added("f32", ftz=True),
    "add.f32": added("f32", ftz=True),
    "shared.add.f32": added("f32"),
    "global.add.noftz.f16": added("f16"),
    "shared.add.noftz.bf16": added("bf16"),
    "global.add.noftz.f16x2": added_pairs("f16"),
    "shared.add.noftz.bf16x2": added_pairs("bf16"),
}


@pytest.mark.parametrize("name", sorted(SUMS))
@share(2 / 5)
@given(raw=words(SLOTS), values=words(LANES), places=words(LANES))
def test_float_sums_round_once_a_lane_and_are_marked_inexact(
    name: str, raw: np.ndarray, values: np.ndarray, places: np.ndarray
) -> None:
    """Outside shared memory f32 flushes subnormal numbers; the order of arrival is open, so no such sum is exact."""
    size = 2 if name.endswith("f16") and "x2" not in name else 4
    at = places % np.uint64(SLOTS) * np.uint64(8)
    pool, b = raw.view(np.uint8).copy(), values.astype(f"u{size}")
    found, left = sequential(pool, at.tolist(), size, SUMS[name], [b.tolist()])
    ran = single_instruction.run(f"atom.{name}", at, b, pool=pool)
    assert (ran.results[0].tolist(), ran.pool.tobytes()) == (found, left)
    assert ran.trace.inexact
    assert not ran.trace.is_exact


@pytest.mark.parametrize(
    ("opcode", "kind"), [("add.v4.f32", "f32"), ("add.noftz.v8.f16", "f16"), ("max.noftz.v2.bf16", "bf16")]
)
@share(1 / 3)
@given(raw=words(8), values=words(16), places=words(16))
def test_a_vector_atomic_is_one_update_an_element(
    opcode: str, kind: str, raw: np.ndarray, values: np.ndarray, places: np.ndarray
) -> None:
    count, grid = int(opcode.split(".v")[1][0]), GRIDS[kind]
    size = 4 if kind == "f32" else 2
    at = places % np.uint64(64 // (size * count)) * np.uint64(size * count)
    elements = [np.roll(values, place).astype(f"u{size}") for place in range(count)]
    update = added(kind, ftz=kind == "f32")
    if opcode.startswith("max"):
        update = lambda old, b: grid.encode(rational_float.extremum([grid.decode(old), grid.decode(b)], largest=True))  # noqa: E731
    ran = single_instruction.run(f"atom.global.{opcode}", at, *elements, pool=raw.view(np.uint8).copy())
    left = raw.view(np.uint8).copy()
    for place, element in enumerate(elements):
        found, raw_left = sequential(left, (at + np.uint64(size * place)).tolist(), size, update, [element.tolist()])
        left = np.frombuffer(raw_left, np.uint8)
        assert ran.results[place].tolist() == found
    assert ran.pool.tobytes() == left.tobytes()


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_under_random_schedules_atomics_still_take_turns(seed: int) -> None:
    """256 increments of one counter hand out every number below 256 once, whoever comes first."""
    ones = np.ones(256, np.uint32)
    ran = single_instruction.run(
        "atom.global.add.u32", np.zeros(256, np.uint64), ones, pool=np.zeros(16, np.uint8), policy="random", seed=seed
    )
    assert sorted(ran.results[0].tolist()) == list(range(256))
    assert ran.pool[:2].tolist() == [0, 1]


def test_nan_in_a_sum_of_doubles_is_as_measured() -> None:
    """On an H200 the added NaN wins in global memory and stays signalling; shared memory keeps and quiets its own."""
    mine, added_nan = 0x7FF4000000000005, 0xFFF0000000000001
    pool = np.array([mine, 0], np.uint64).view(np.uint8)
    at, b = np.zeros(1, np.uint64), np.array([added_nan], np.uint64)
    left = {
        space: single_instruction.run(f"atom.{space}.add.f64", at, b, pool=pool).pool.view(np.uint64)[0]
        for space in ("global", "shared")
    }
    assert {space: hex(bits) for space, bits in left.items()} == {
        "global": hex(added_nan),
        "shared": "0x7ffc000000000005",
    }
