"""Who held what on an H200, replayed against the layouts without a GPU: fragments, descriptors, swizzles, boxes, banks.

A product is recorded as classes: places of A and B whose k agree, places of A in one row, places of B in one column, and
the place of D where row and column meet. That fixes a fragment up to the names of rows, columns and k, which no program
can see in registers; in shared memory the addresses name them.
"""

import hashlib
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import refsim
from refsim.layouts import fragment, fragments
from refsim.layouts.descriptors import DESCRIPTORS, descriptor, walk
from refsim.layouts.evidence import evidence
from refsim.layouts.swizzles import SWIZZLES, swizzle
from refsim.layouts.tma import tensor_map
from refsim.silicon.vectors import recordings, sidecar

PACKED = ("d", "a_places", "b_places", "load", "store")
ABSENT = 0xFFFF


def unpacked(recording):
    """The recording with its arrays as they were: some are kept as differences along their last axis."""
    arrays = {
        key: np.cumsum(array, axis=-1, dtype=np.uint16) if key in PACKED else array
        for key, array in recording.arrays.items()
    }
    return replace(recording, arrays=arrays)


RECORDED = {name: unpacked(recording) for name, recording in recordings("layouts").items()}


def named(*kinds):
    """The recordings of some kinds, by name."""
    return sorted(name for name, row in RECORDED.items() if row.facts["kind"] in kinds)


MATRICES, PRODUCTS, BOXES, CYCLES = (
    named("matrix"),
    named("mma", "wgmma", "wgmma-shared"),
    named("tma"),
    named("cycles"),
)
LOADED = [name for name in BOXES if "load" in RECORDED[name].arrays]


def differences(got, want):
    """The keys of two sets of arrays that differ."""
    return [key for key in want if not np.array_equal(got[key], want[key])]


# ---- ldmatrix, stmatrix ----------------------------------------------------------------------------------------------


def matrix_image(recording, layout):
    """What the layout says the recording holds: halfwords of registers, or of shared memory after the store."""
    rows, columns = layout.elements
    slots = recording.arrays["slots"].astype(np.int64)
    place = slots[rows] * 8 + columns
    if "registers" in recording.arrays:
        return place.ravel()
    image = np.full(recording.arrays["shared"].size, ABSENT)
    image[place.ravel()] = np.arange(place.size)
    return image


def matrix_difference(name, layout):
    recording = RECORDED[name]
    held = recording.arrays.get("registers", recording.arrays.get("shared"))
    return np.flatnonzero(held != matrix_image(recording, layout)).tolist()


@pytest.mark.parametrize("name", MATRICES)
def test_ldmatrix_and_stmatrix_move_what_the_h200_moved(name):
    assert matrix_difference(name, fragment(name)) == []


@pytest.mark.parametrize("name", MATRICES)
def test_a_wrong_matrix_map_is_refused(name):
    wrong = name.removesuffix(".trans") if name.endswith(".trans") else f"{name}.trans"
    assert matrix_difference(name, fragment(wrong)) != []


# ---- products --------------------------------------------------------------------------------------------------------


def numbered(marks):
    """Classes of equal marks, numbered in order of first appearance: [7, 3, 7] gives [0, 1, 0]."""
    _, first, which = np.unique(marks, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first))[which]


def operand_name(facts, operand):
    """wgmma.m64n24k16.f16.d; the default accumulator takes no suffix."""
    m, n, k = facts["shape"]
    unit = facts["kind"].partition("-")[0]
    name = f"{unit}.m{m}n{n}k{k}.{facts['type']}.{operand}"
    if operand in "cd" and facts["accumulator"] == "f16":
        return f"{name}.f16"
    swapped = facts["majors"] != ["row", "col"] and is_volta(facts)
    return f"{name}.{facts['majors']['ab'.index(operand)]}" if swapped and operand in "ab" else name


def is_volta(facts):
    return facts["kind"] == "mma" and facts["type"] == "f16" and facts["shape"] == [8, 8, 4]


def in_registers(facts, operand):
    """Places, rows and columns of an operand as its fragment has them, in order of place."""
    layout = fragment(operand_name(facts, operand))
    rows, columns = layout.elements
    return np.arange(rows.size), rows.ravel(), columns.ravel()


def in_shared(facts, operand):
    """Slots, rows and columns of an operand as the walk of its descriptor has them, in order of slot."""
    m, n, k = facts["shape"]
    name = f"wgmma.m{m}n{n}k{k}.{facts['type']}.{operand}"
    bits = {"f16": 16, "bf16": 16, "tf32": 32, "b1": 1}.get(facts["type"], 8)
    found = walk(descriptor("wgmma-smem"), int(facts[operand]["word"], 16), name, major=facts[operand]["major"])
    rows, columns = np.indices(found.bits.shape)
    slots = found.bits // bits
    order = np.argsort(slots, axis=None)
    rows, columns = rows.ravel()[order], columns.ravel()[order]
    return (slots.ravel()[order], rows, columns) if operand == "a" else (slots.ravel()[order], columns, rows)


def product_classes(facts, coordinates):
    """What a recording would hold if `coordinates` (places, rows, columns of a, b and d) were the layout."""
    (a_places, m, a_k), (b_places, b_k, n), (d_places, d_m, d_n) = (coordinates[operand] for operand in "abd")
    if is_volta(facts):  # four products: k of one is not k of another, and columns of D repeat in each
        a_k, b_k = a_k + 4 * (m // 8), b_k + 4 * (n // 8)
        d_n = d_n + 8 * (d_m // 8)
    k = numbered(np.concatenate([a_k, b_k]))
    a_row, b_col = numbered(m), numbered(n)
    d = np.full((a_row.max() + 1, b_col.max() + 1), ABSENT)
    row_of, column_of = (
        dict(zip(marks.tolist(), classes.tolist(), strict=True)) for marks, classes in ((m, a_row), (n, b_col))
    )
    for place, row, column in zip(d_places.tolist(), d_m.tolist(), d_n.tolist(), strict=True):
        d[row_of[row], column_of[column]] = place
    return {
        "a_places": a_places,
        "b_places": b_places,
        "a_row": a_row,
        "b_col": b_col,
        "d": d,
        "a_k": k[: a_k.size],
        "b_k": k[a_k.size :],
    }


def coordinates_of(facts):
    """Places, rows and columns of a, b and d in the model."""
    return {operand: (in_shared if operand in facts else in_registers)(facts, operand) for operand in "abd"}


def product_differences(name, change=None):
    facts = RECORDED[name].facts
    coordinates = coordinates_of(facts)
    if change:
        change(coordinates)
    return differences(RECORDED[name].arrays, product_classes(facts, coordinates))


@pytest.mark.parametrize("name", PRODUCTS)
def test_products_come_from_and_go_to_the_places_of_the_h200(name):
    assert product_differences(name) == []


@pytest.mark.parametrize("name", named("mma"))
def test_c_lies_as_d_on_the_h200(name):
    """Place p of C held p + 1; after a product of zeros place p of D holds it."""
    carried = RECORDED[name].arrays["carried"]
    dtype = {"f16": np.float16, "f32": np.float32, "f64": np.float64, "s32": np.int32}[
        RECORDED[name].facts["accumulator"]
    ]
    numbers = carried.astype(f"u{np.dtype(dtype).itemsize}").view(dtype)
    facts = RECORDED[name].facts
    assert np.array_equal(numbers, np.arange(1, carried.size + 1))
    assert np.array_equal(fragment(operand_name(facts, "c")).elements, fragment(operand_name(facts, "d")).elements)


def swaps_rows_of_a(coordinates):
    """Neighbouring rows of A change places, but not those of D."""
    places, rows, columns = coordinates["a"]
    coordinates["a"] = places, rows ^ 1, columns


def reverses_columns_of_d(coordinates):
    places, rows, columns = coordinates["d"]
    coordinates["d"] = places, rows, columns ^ 1


def moves_k_of_b(coordinates):
    places, k, columns = coordinates["b"]
    coordinates["b"] = places, k ^ 1, columns


@pytest.mark.parametrize("name", ["mma.m16n8k16.bf16.f32", "mma.m16n8k32.e4m3.f32", "wgmma.m64n24k16.f16.f32"])
@pytest.mark.parametrize("mutant", [swaps_rows_of_a, reverses_columns_of_d, moves_k_of_b])
def test_a_wrong_fragment_is_refused(name, mutant):
    assert product_differences(name, mutant) != []


def test_k_has_no_name_in_registers():
    """The one freedom that is left: k renumbered alike in A and B is the same product, on any chip."""

    def renumbers_k(coordinates):
        places, rows, k = coordinates["a"]
        coordinates["a"] = places, rows, k ^ 3
        places, k, columns = coordinates["b"]
        coordinates["b"] = places, k ^ 3, columns

    assert product_differences("mma.m16n8k16.bf16.f32", renumbers_k) == []


@pytest.mark.parametrize("operand", ["a", "b"])
@pytest.mark.parametrize("mode", ["none", "32B", "64B"])
def test_a_wrong_swizzle_is_refused(operand, mode):
    """The 128B recording, walked as if its descriptor said something else."""
    facts = RECORDED["wgmma.m64n16k16.f16.f32.K.K.128B"].facts
    fields = descriptor("wgmma-smem").decode(int(facts[operand]["word"], 16))
    word = descriptor("wgmma-smem").encode(**{**fields, "swizzle": mode})
    coordinates = coordinates_of({**facts, operand: {**facts[operand], "word": f"{word:#x}"}})
    assert differences(RECORDED["wgmma.m64n16k16.f16.f32.K.K.128B"].arrays, product_classes(facts, coordinates)) != []


# ---- TMA -------------------------------------------------------------------------------------------------------------


def box_of(facts):
    """The tensor map and the placement of a recorded copy."""
    made = tensor_map(
        facts["data_type"],
        facts["dims"],
        facts["box"],
        strides=facts["strides"],
        swizzle=facts["swizzle"],
        element_strides=facts["element_strides"] or None,
        oob_fill="nan_request_zero_fma" if facts["nan_fill"] else "zeros",
    )
    return made.place(facts["coordinates"], facts["shared_offset"])


def placed_bytes(placed):
    """Shared byte and tensor byte (-1 outside) of every byte of the box."""
    within = np.arange(placed.tensor_map.data_type.element_bits // 8)
    shared = placed.shared_bytes[..., None] + within
    whole = np.where(placed.inside[..., None], placed.global_bytes[..., None] + within, -1)
    return shared.ravel(), whole.ravel()


def load_image(placed, size):
    """The window after a load: number of the tensor byte + 1, 0 where it is filled, ABSENT where nothing is written."""
    image = np.full(size, ABSENT)
    shared, tensor = placed_bytes(placed)
    image[shared] = tensor + 1
    return image


def store_image(placed, size):
    """The tensor after a store: number of the window's byte + 1, ABSENT where nothing is written."""
    image = np.full(size, ABSENT)
    shared, tensor = placed_bytes(placed)
    image[tensor[tensor >= 0]] = shared[tensor >= 0] + 1
    return image


@pytest.mark.parametrize("name", LOADED)
def test_a_box_is_loaded_to_the_bytes_of_the_h200(name):
    recording = RECORDED[name]
    placed = box_of(recording.facts)
    window = recording.arrays["load"]
    assert np.flatnonzero(window != load_image(placed, window.size)).tolist() == []
    assert recording.facts["transaction_met"]
    assert placed.transaction_bytes == recording.facts["transaction_bytes"]


@pytest.mark.parametrize("name", [name for name in LOADED if "store" in RECORDED[name].arrays])
def test_a_box_is_stored_to_the_bytes_of_the_h200(name):
    recording = RECORDED[name]
    tensor = recording.arrays["store"]
    assert np.flatnonzero(tensor != store_image(box_of(recording.facts), tensor.size)).tolist() == []


@pytest.mark.parametrize("mode", ["32B", "64B", "128B"])
def test_a_wrong_box_swizzle_is_refused(mode):
    recording = RECORDED[f"tma.bfloat16.{mode}"]
    shared, tensor = placed_bytes(box_of(recording.facts))
    image = np.full(recording.arrays["load"].size, ABSENT)
    image[swizzle(mode)(shared)] = tensor + 1
    assert not np.array_equal(recording.arrays["load"], image)


# ---- the recording -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in BOXES if name not in LOADED])
def test_nan_fill_is_7ff7_in_every_halfword(name):
    """Also of float32, whose fill is 0x7ff77ff7; the box lies outside the tensor."""
    recording = RECORDED[name]
    placed, window = box_of(recording.facts), recording.arrays["fill"]
    memory = np.zeros(int(placed.global_bytes.max()) + 8, np.uint8)
    start = recording.facts["shared_offset"]
    loaded = placed.load(memory, pad=0xA5)
    assert np.array_equal(window[start : start + loaded.size], loaded)
    assert (np.delete(window, range(start, start + loaded.size)) == 0xA5).all()


def test_every_recording_is_replayed():
    counts = Counter(row.facts["kind"] for row in RECORDED.values())
    assert counts == {"matrix": 12, "mma": 39, "wgmma": 127, "wgmma-shared": 44, "tma": 58, "cycles": 10}


def covered():
    """The names of the layouts that the recordings bear out."""
    names = {*MATRICES, "wgmma-smem", "tensormap", *(f"swizzle.{mode}" for mode in ("none", "32B", "64B", "128B"))}
    for name in PRODUCTS:
        facts = RECORDED[name].facts
        in_register = {"mma": "abcd", "wgmma": "ad", "wgmma-shared": "d"}[facts["kind"]]
        names |= {operand_name(facts, operand) for operand in in_register}
    return names | {fragment_loaded_or_stored(form) for form in recordings("wmma")["wmma"].facts["forms"]} - {""}


def fragment_loaded_or_stored(form):
    """`wmma.load.a.row.m16n16k16.f16` moves the fragment wmma.m16n16k16.f16.a, which `test_recorded_wmma` replays; products
    ("") use what was loaded."""
    unit, verb, *words = form.split(".")
    if verb not in ("load", "store"):
        return ""
    operand, _, shape, type = words
    return f"{unit}.{shape}.{type}.{operand}"


def test_no_layout_claims_this_chip_beyond_the_recording():
    swizzles = [f"swizzle.{row.name}" for row in SWIZZLES]
    names = [*fragments(), *swizzles, *(row.kind for row in DESCRIPTORS)]
    claiming = {name for name in names if any(run.device == "H200" for run in evidence(name).runs)}
    assert claiming <= covered() <= set(names)


def test_recording_says_what_made_it():
    facts = sidecar("layouts")
    assert facts["device"] == "NVIDIA H200"
    assert "V13.0.88" in facts["compiler"]
    assert facts["flags"].endswith("arch=compute_90a,code=sm_90a")
    assert RECORDED["wgmma.m64n24k16.f16.f32"].facts["sass"][-1] == "HGMMA.64x24x16.F32"
    assert sum(RECORDED[name].facts["pairs"] for name in PRODUCTS) == 426_259_456


@pytest.mark.parametrize("source", ["layouts.cu", "layouts_forms.py"])
def test_recording_was_made_from_the_source_beside_it(source):
    path = Path(refsim.__file__).parents[1] / "gpu" / "probes" / source
    if not path.is_file():
        pytest.skip("the checkout's gpu/probes is not here: run from a checkout")
    assert hashlib.sha256(path.read_bytes()).hexdigest() == sidecar("layouts")["sha256"][source]
