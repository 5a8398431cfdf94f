"""Laws of swizzles, tiles, scale layouts, TMA boxes, descriptors and banks, over their whole parameter space."""

import numpy as np
from hypothesis import assume, given
from hypothesis import strategies as st

from refsim.errors import RefsimError
from refsim.layouts.banks import WIDTHS, bank_conflicts
from refsim.layouts.descriptors import DESCRIPTORS, Descriptor, descriptor, operand_descriptor, operand_named, walk
from refsim.layouts.scales import SCALE_LAYOUTS, ScaleLayout
from refsim.layouts.swizzles import SWIZZLES, Swizzle, swizzle
from refsim.layouts.tiles import MAJORS, Tile, tile
from refsim.layouts.tma import TensorMap, tensor_map

WORDS = [row for row in DESCRIPTORS if isinstance(row, Descriptor)]
addresses = st.lists(st.integers(0, 1 << 40), min_size=1, max_size=64).map(np.array)


@st.composite
def swizzles(draw: st.DrawFn) -> Swizzle:
    """A named mode, or any legal Swizzle<B,M,S>, negative shifts too."""
    if draw(st.booleans()):
        return draw(st.sampled_from(SWIZZLES))
    bits, base = draw(st.integers(0, 5)), draw(st.integers(0, 7))
    shift = draw(st.integers(bits, bits + 4)) * draw(st.sampled_from([1, -1]))
    return swizzle(f"Swizzle<{bits},{base},{shift}>")


@st.composite
def tiles(draw: st.DrawFn) -> Tile:
    """A legal tile: any major, mode and element size, a few atoms each way, compact or with gaps."""
    major, mode = draw(st.sampled_from(MAJORS)), draw(st.sampled_from(SWIZZLES))
    assume(not (mode.name == "128B_32B_atom" and major == "K"))
    element_bytes = draw(st.sampled_from([1, 2, 4]))
    counts = draw(st.tuples(st.integers(1, 4), st.integers(1, 4)))
    atom = tile(major, mode, element_bytes, _one_atom(major, mode, element_bytes)).atom
    shape = (counts[0] * atom[0], counts[1] * atom[1])
    if draw(st.booleans()):
        return tile(major, mode, element_bytes, shape)
    atom_bytes = atom[0] * atom[1] * element_bytes
    inner = atom_bytes * draw(st.integers(1, 2))
    outer = inner * (counts[1] + draw(st.integers(0, 1)))
    return tile(major, mode, element_bytes, shape, mn_stride_bytes=outer, k_stride_bytes=inner)


def _one_atom(major: str, mode: Swizzle, element_bytes: int) -> tuple[int, int]:
    lines, along = 4 if mode.name == "128B_32B_atom" else 8, mode.span_bytes // element_bytes
    return (lines, along) if major == "K" else (along, lines)


@st.composite
def scale_problems(draw: st.DrawFn) -> tuple[ScaleLayout, tuple[int, int]]:
    layout = draw(st.sampled_from(SCALE_LAYOUTS))
    rows, blocks = draw(st.integers(1, 3 * layout.tile[0])), draw(st.integers(1, 3 * layout.tile[1]))
    if not layout.pads:
        rows, blocks = -(-rows // layout.tile[0]) * layout.tile[0], -(-blocks // layout.tile[1]) * layout.tile[1]
    return layout, (rows, blocks)


@st.composite
def boxes(draw: st.DrawFn) -> tuple[TensorMap, tuple[int, ...], int]:
    """A tensor map, the coordinates of a box that may hang over any edge, and a shared address."""
    mode = draw(st.sampled_from(["none", "32B", "64B", "128B", "128B_32B_atom"]))
    data_type, bits = draw(st.sampled_from([("uint8", 8), ("bfloat16", 16), ("float32", 32), ("16u4_align8b", 4)]))
    span = 128 if mode == "none" else swizzle(mode).span_bytes
    quantum = 128 // bits
    columns = quantum * draw(st.integers(1, span * 8 // bits // quantum))
    rank = draw(st.integers(1, 3))
    dims = [quantum * draw(st.integers(1, 6)), *(draw(st.integers(1, 9)) for _ in range(rank - 1))]
    box = [columns, *(draw(st.integers(1, 6)) for _ in range(rank - 1))]
    steps = [1, *(draw(st.integers(1, 3)) for _ in range(rank - 1))]
    at = [quantum * draw(st.integers(-2, 6)), *(draw(st.integers(-4, 9)) for _ in range(rank - 1))]
    made = tensor_map(data_type, dims, box, element_strides=steps, swizzle=mode)
    return made, tuple(at), 128 * draw(st.integers(0, 20))


@st.composite
def words(draw: st.DrawFn) -> tuple[Descriptor, int]:
    """A legal word of any descriptor, from legal values of every field; illegal combinations are passed over."""
    row = draw(st.sampled_from(WORDS))
    values = {}
    for field in row.fields:
        if field.fixed:
            continue
        if field.names:
            values[field.name] = draw(st.sampled_from([name for _, name in field.names]))
        else:
            legal = field.allowed or range(0, (1 << field.width) * field.unit, field.unit)
            values[field.name] = draw(st.sampled_from(legal))
    try:
        return row, row.encode(**values)
    except RefsimError as error:
        assume(error.code != "bad-descriptor")
        raise


@given(pattern=swizzles(), at=addresses)
def test_swizzle_is_an_involution(pattern: Swizzle, at: np.ndarray) -> None:
    assert (pattern(pattern(at)) == at).all()


@given(pattern=swizzles(), at=addresses)
def test_swizzle_keeps_chunks_whole_and_stays_in_its_repeat(pattern: Swizzle, at: np.ndarray) -> None:
    chunk, moved = pattern.chunk_bytes, pattern(at)
    assert (moved % chunk == at % chunk).all()
    assert (moved // pattern.repeat_bytes == at // pattern.repeat_bytes).all()


@given(pattern=swizzles())
def test_swizzle_is_a_bijection_of_its_repeat(pattern: Swizzle) -> None:
    assume(pattern.repeat_bytes <= 1 << 16)
    whole = np.arange(2 * pattern.repeat_bytes)
    assert (np.sort(pattern(whole)) == whole).all()
    assert (
        pattern(whole[pattern.repeat_bytes :]) - pattern.repeat_bytes == pattern(whole[: pattern.repeat_bytes])
    ).all()


@given(pattern=swizzles(), exponent=st.integers(0, 4), at=addresses)
def test_swizzle_of_elements_is_the_swizzle_of_their_bytes(pattern: Swizzle, exponent: int, at: np.ndarray) -> None:
    assume(exponent <= pattern.base)
    assert (pattern.in_elements(1 << exponent)(at) << exponent == pattern(at << exponent)).all()


@given(made=tiles(), start=st.integers(0, 4))
def test_tile_places_every_element_once(made: Tile, start: int) -> None:
    begin = start * 1024
    places = made.address(*np.ogrid[: made.shape[0], : made.shape[1]], start=begin)
    assert np.unique(places).size == places.size
    assert (places % made.element_bytes == 0).all()
    assert places.min() >= begin
    assert places.max() < begin + made.size_bytes


@given(made=tiles(), start=st.integers(0, 4), within=st.integers(0, 3))
def test_coord_inverts_address(made: Tile, start: int, within: int) -> None:
    mn, k = np.mgrid[: made.shape[0], : made.shape[1]]
    byte = made.address(mn, k, start=1024 * start) + within % made.element_bytes
    back = made.coord(byte, start=1024 * start)
    assert (back[0] == mn).all()
    assert (back[1] == k).all()


@given(problem=scale_problems(), fill=st.integers(0, 255), seed=st.integers(0, 99))
def test_unshuffle_inverts_shuffle(problem: tuple[ScaleLayout, tuple[int, int]], fill: int, seed: int) -> None:
    layout, shape = problem
    limit = 1 << 8 * layout.element_bytes
    codes = np.random.default_rng(seed).integers(0, limit, (2, *shape), dtype=np.uint64)
    matrix = codes.astype(np.uint8 if layout.element_bytes == 1 else np.uint32)
    packed = layout.shuffle(matrix, fill=fill)
    assert packed.shape == (2, *layout.packed_shape(shape))
    assert (layout.unshuffle(packed, shape) == matrix).all()
    assert (layout.unshuffle(packed.reshape(2, -1), shape) == matrix).all()
    assert (packed.reshape(2, -1)[:, layout.pads_of(shape) // layout.element_bytes] == fill).all()


@given(problem=scale_problems())
def test_scale_offset_is_a_bijection_with_coord(problem: tuple[ScaleLayout, tuple[int, int]]) -> None:
    layout, shape = problem
    rows, blocks = layout.padded(shape)
    offsets = layout.offset(*np.ogrid[:rows, :blocks], shape)
    assert (np.sort(offsets.ravel()) == np.arange(0, layout.size_bytes(shape), layout.element_bytes)).all()
    row, block = layout.coord(offsets + layout.element_bytes - 1, shape)
    assert (row == np.arange(rows)[:, None]).all()
    assert (block == np.arange(blocks)).all()


@given(box=boxes())
def test_box_fills_shared_memory_without_overlap(box: tuple[TensorMap, tuple[int, ...], int]) -> None:
    made, coordinates, shared = box
    placed = made.place(coordinates, shared)
    assert np.unique(placed.shared_bits).size == placed.shared_bits.size
    assert placed.shared_bits.min() >= 8 * shared
    assert placed.shared_bits.max() < 8 * (shared + made.box_bytes)
    inside = placed.global_bits[placed.inside]
    assert np.unique(inside).size == inside.size
    assert (placed.global_bytes[~placed.inside] == -1).all()
    assert placed.pads.size + placed.transaction_bytes == made.box_bytes


@given(box=boxes())
def test_driver_arguments_round_trip(box: tuple[TensorMap, tuple[int, ...], int]) -> None:
    made, form = box[0], descriptor("tensormap")
    fields = {name: value for name, value in vars(made).items() if name not in ("source", "pixels")}
    arguments = form.encode(**fields)
    assert form.decode(arguments) == made


@given(pair=words())
def test_descriptor_round_trips(pair: tuple[Descriptor, int]) -> None:
    row, word = pair
    assert row.encode(**row.decode(word)) == word
    assert row.problems(word) == ()
    assert not row.explain(word).problems


@given(row=st.sampled_from(WORDS), word=st.integers(0, (1 << 64) - 1))
def test_any_word_decodes_and_is_rebuilt_unless_it_has_problems(row: Descriptor, word: int) -> None:
    cut = word & (1 << row.bits) - 1
    fields = row.decode(cut)
    assert str(row.explain(cut))
    if not row.problems(cut):
        assert row.encode(**fields) == cut


@given(made=tiles(), start=st.integers(0, 4), data=st.data())
def test_descriptor_of_a_tile_reads_the_tile(made: Tile, start: int, data: st.DataObject) -> None:
    """Wherever a K step begins, the instruction reads exactly the bytes where the tile keeps those elements."""
    kind = {1: "i8", 2: "f16", 4: "tf32"}[made.element_bytes]
    step = 32 // made.element_bytes
    rows = min(256, made.shape[0] // 8 * 8)
    assume(made.shape[1] % step == 0 and rows)
    k = step * data.draw(st.integers(0, made.shape[1] // step - 1))
    operand = f"tcgen05.m128n{rows}k{step}.{kind}.b"
    word = operand_descriptor("tcgen05-smem", made, 1024 * start, k=k)
    found = walk(descriptor("tcgen05-smem"), word, operand, major=made.major, window=(0, 1 << 20))
    assert operand_named(operand).rows == rows
    assert (found.addresses == made.address(*np.ogrid[:rows, k : k + step], start=1024 * start)).all()
    assert not found.overlaps.size


@given(
    width=st.sampled_from(WIDTHS), lanes=st.lists(st.integers(0, 300), min_size=1, max_size=32), shift=st.integers(0, 9)
)
def test_bank_conflicts_do_not_see_lane_order_or_a_common_offset(width: int, lanes: list[int], shift: int) -> None:
    """Within a phase lanes are a set, and adding 128 bytes to all moves no bank."""
    phase = {16: 8, 8: 16}.get(width, 32)
    at = np.array(lanes[:phase]) * width
    cost = bank_conflicts(at, width).wavefronts.tolist()
    assert bank_conflicts(at[::-1], width).wavefronts.tolist() == cost
    assert bank_conflicts(at + 128 * shift, width).wavefronts.tolist() == cost


@given(width=st.sampled_from(WIDTHS), lanes=st.lists(st.integers(0, 200), min_size=1, max_size=32))
def test_collisions_are_the_cost(width: int, lanes: list[int]) -> None:
    """A phase costs as many wavefronts as the most words any bank is asked for, and collisions list exactly those."""
    conflicts = bank_conflicts(np.array(lanes) * width, width)
    worst = [1] * conflicts.wavefronts.size
    for hit in conflicts.collisions():
        worst[hit.phase] = max(worst[hit.phase], len(hit.words))
        assert len({word // 4 % 32 for word in hit.words}) == 1
    assert conflicts.wavefronts.tolist() == worst
