"""Drawings of layouts say what the layouts say."""

import re
import xml.etree.ElementTree as ET

import numpy as np
import pytest

from refsim import layouts
from refsim.errors import RefsimError
from refsim.layouts.banks import bank_conflicts
from refsim.layouts.descriptors import descriptor, walk
from refsim.layouts.drawing import draw
from refsim.layouts.families import fragment
from refsim.layouts.pictures import (
    HARDWARE,
    access_picture,
    fragment_picture,
    scale_picture,
    swizzle_picture,
    tile_picture,
    walk_picture,
)
from refsim.layouts.scales import scale_layout
from refsim.layouts.swizzles import swizzle
from refsim.layouts.tiles import tile
from refsim.render import ALERT, EMPTY

NAMES = ["mma.m16n8k16.bf16.a", "wgmma.m64n128k32.e4m3.d", "mfma.16x16x32.fp8.d", "tcgen05.m64.1x.sfa"]


def table(picture, name):
    return np.array(picture.fact(name).values).reshape(len(picture.row_labels), len(picture.col_labels))


@pytest.mark.parametrize("name", NAMES)
def test_fragment_picture_shows_the_holder(name):
    frag = fragment(name)
    picture = fragment_picture(frag)
    threads, values = frag.holder(*np.ogrid[: frag.shape[0], : frag.shape[1]])
    assert np.array_equal(table(picture, picture.together), threads)
    assert np.array_equal(table(picture, frag.units[1]), values)
    if "lane" in [fact.name for fact in picture.facts]:
        lanes = 64 if name.startswith("mfma") else 32
        assert np.array_equal(table(picture, "lane"), threads % lanes)


@pytest.mark.parametrize("name", [*NAMES, "mma.m16n8k64.mxf4.2x.sfa"])
def test_hardware_view_shows_the_element(name):
    frag = fragment(name)
    picture = fragment_picture(frag, view=HARDWARE)
    row, col = frag.elements
    assert np.array_equal(table(picture, "row"), row)
    assert np.array_equal(table(picture, "col"), col)
    assert [colour == EMPTY for colour in picture.colours] == (row < 0).ravel().tolist()


def test_memory_adds_byte_and_bank():
    frag, place = fragment("mma.m16n8k16.bf16.a"), tile("K", "32B", 2, (16, 16))
    picture = fragment_picture(frag, memory=place, by="bank")
    byte = place.address(*np.ogrid[:16, :16])
    assert np.array_equal(table(picture, "byte"), byte)
    assert np.array_equal(table(picture, "bank"), byte // 4 % 32)
    assert picture.together == "bank"


def test_a_window_is_part_of_the_whole():
    whole = fragment_picture(fragment("wgmma.m64n128k32.e4m3.d"))
    part = fragment_picture(fragment("wgmma.m64n128k32.e4m3.d"), rows=range(16, 24), cols=range(40, 48))
    assert np.array_equal(table(part, "thread"), table(whole, "thread")[16:24, 40:48])
    assert part.fact("value").values[8 + 2] == 20


def test_unknown_fact_is_refused():
    with pytest.raises(RefsimError, match="fact of this picture"):
        fragment_picture(fragment("mma.m16n8k16.bf16.a"), by="bank")


@pytest.mark.parametrize("name", ["none", "32B", "64B", "128B", "128B_32B_atom", "Swizzle<3,3,3>", "Swizzle<2,6,4>"])
def test_swizzle_picture_shows_what_lies_there(name):
    mode = swizzle(name)
    picture = swizzle_picture(mode)
    assert np.array_equal(mode(table(picture, "address")), table(picture, "byte"))
    size = min(16, mode.chunk_bytes)
    assert np.array_equal(table(picture, "column"), table(picture, "address") % 128 // size)


def test_tile_picture_shows_the_address():
    place = tile("MN", "128B", 2, (64, 8))
    assert np.array_equal(table(tile_picture(place), "byte"), place.address(*np.ogrid[:64, :8]))


@pytest.mark.parametrize("name", ["nvidia_128x4", "cdna4_16", "deepgemm_mn_f32", "nvidia_8x4"])
def test_both_views_of_scales_agree_and_mark_the_pads(name):
    layout, shape = scale_layout(name), (5, 3)
    there, back = scale_picture(layout, shape), scale_picture(layout, shape, view=HARDWARE)
    rows, blocks, at = (np.array(back.fact(each).values) for each in ("row", "block", "byte"))
    shown = np.array(back.colours) != EMPTY
    assert np.array_equal(layout.offset(rows[shown], blocks[shown], shape), at[shown])
    pads = len(layout.pads_of(shape))
    assert list(there.colours).count(ALERT) == list(back.colours).count(ALERT) == pads


@pytest.mark.parametrize(("stride", "width"), [(128, 16), (16, 16), (4, 4), (0, 4), (264, 8), (132, 4)])
def test_access_picture_has_as_many_lines_as_wavefronts(stride, width):
    found = bank_conflicts([lane * stride for lane in range(32)], width)
    picture = access_picture(found)
    assert len(picture.row_labels) == found.total
    lanes = {int(each) for cell in picture.fact("lanes").values if cell for each in cell.split("+")}
    assert lanes == set(range(32))


def test_walk_picture_marks_overlaps():
    form = descriptor("wgmma-smem")
    sound = walk_picture(walk(form, 0x4000004000000040, "wgmma.m64n16k16.bf16.b"))
    assert sound.fact("byte").values[:3] == [1024, 1040, 1168]
    assert ALERT not in sound.colours
    overlapping = walk_picture(walk(form, 0x4000000000000040, "wgmma.m64n16k16.bf16.b"))
    assert set(overlapping.colours) == {ALERT}


@pytest.mark.parametrize(
    "thing",
    [
        fragment("mma.m16n8k16.bf16.a"),
        swizzle("128B"),
        tile("K", "64B", 2, (8, 32)),
        scale_layout("nvidia_128x4"),
        bank_conflicts([0, 128]),
        walk(descriptor("wgmma-smem"), 0x4000004000000040, "wgmma.m64n8k16.bf16.b"),
    ],
)
def test_notebooks_show_every_layout(thing):
    drawing = draw(thing)
    ET.fromstring(drawing._repr_svg_())
    assert drawing._repr_svg_() in drawing._repr_html_()
    assert re.search(r'class="cells"', drawing._repr_html_())


def test_other_things_are_not_drawn():
    with pytest.raises(RefsimError, match="unknown-layout"):
        draw(3)


@pytest.mark.parametrize(
    "thing",
    [
        layouts.fragment("mma.m16n8k16.bf16.a"),
        layouts.swizzle("128B"),
        layouts.scale_layout("nvidia_128x4"),
        layouts.bank_conflicts(np.arange(32) * 16),
    ],
    ids=lambda thing: type(thing).__name__,
)
def test_a_notebook_shows_the_drawing(thing):
    assert thing._repr_svg_().startswith("<svg")
    assert "<svg" in thing._repr_html_()
