"""Fragments: worked places from the ISA documents, names and refusals, arrays as a whole."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from refsim import layouts
from refsim.errors import RefsimError
from refsim.evidence import Evidence, Level
from refsim.layouts import FAMILIES, fragment, fragments
from refsim.layouts.evidence import FORMULA, evidence
from refsim.numerics import profile

# name, thread, value, row, col: read off the formulas and figures of the documents, not computed here
PLACES = [
    ("mma.m8n8k4.f16.a", 21, 3, 13, 3),
    ("mma.m8n8k4.f16.a.col", 21, 3, 15, 1),
    ("mma.m8n8k4.f16.b", 21, 3, 3, 13),
    ("mma.m8n8k4.f16.b.row", 21, 3, 1, 15),
    ("mma.m8n8k4.f16.d", 1, 6, 3, 4),
    ("mma.m8n8k4.f16.d", 18, 5, 4, 7),
    ("mma.m8n8k4.f16.d.f16", 21, 6, 13, 6),
    ("mma.m8n8k4.f64.b", 9, 0, 1, 2),
    ("mma.m8n8k16.s8.a", 31, 3, 7, 15),
    ("mma.m16n8k4.tf32.a", 9, 1, 10, 1),
    ("mma.m16n8k8.tf32.a", 9, 1, 10, 1),
    ("mma.m16n8k8.tf32.a", 9, 2, 2, 5),
    ("mma.m16n8k16.bf16.a", 5, 3, 9, 3),
    ("mma.m16n8k16.bf16.a", 5, 4, 1, 10),
    ("mma.m16n8k16.bf16.b", 5, 2, 10, 1),
    ("mma.m16n8k16.f64.a", 9, 5, 10, 9),
    ("mma.m16n8k16.f16.c", 5, 2, 9, 2),
    ("mma.m16n8k32.e4m3.a", 5, 15, 9, 23),
    ("mma.m16n8k32.e4m3.b", 5, 7, 23, 1),
    ("mma.m16n8k32.e2m1.a", 5, 15, 9, 23),
    ("mma.m16n8k64.e2m1.a", 5, 31, 9, 47),
    ("mma.m16n8k256.b1.a", 5, 127, 9, 191),
    ("mma.m16n8k32.mxf8f6f4.1x.sfa.byte2.thread1", 7, 2, 9, 0),
    ("mma.m16n8k64.mxf4nvf4.4x.sfa", 5, 3, 9, 3),
    ("mma.m16n8k64.mxf4.2x.sfb.byte2.thread3", 7, 3, 1, 1),
    ("wgmma.m64n128k32.e4m3.d", 37, 20, 17, 42),
    ("wgmma.m64n8k16.bf16.a", 127, 7, 63, 15),
    ("wgmma.m64n8k32.e4m3.a", 37, 13, 25, 21),
    ("ldmatrix.m8n8.x4.b16", 5, 3, 9, 3),
    ("ldmatrix.m8n8.x4.b16.trans", 5, 3, 11, 1),
    ("ldmatrix.m16n16.x2.b8.trans", 5, 13, 21, 9),
    ("ldmatrix.m8n16.x2.b8x16.b4x16_p64", 5, 7, 9, 7),
    ("stmatrix.m16n8.x1.b8.trans", 5, 3, 3, 9),
    ("tcgen05.m64n8.1sm.d", 32, 7, 16, 7),
    ("tcgen05.m128n256.1sm.d", 77, 200, 77, 200),
    ("tcgen05.m128n256.2sm.d", 128 + 65, 3, 65, 131),
    ("tcgen05.m256n16.2sm.d", 255, 15, 255, 15),
    ("tcgen05.m32n64.ws.d", 100, 2, 4, 50),
    ("tcgen05.ld.16x256b.x2", 5, 6, 9, 10),
    ("tcgen05.ld.16x128b.x2", 5, 3, 9, 5),
    ("tcgen05.st.16x64b.x2", 7, 1, 9, 3),
    ("tcgen05.n256.6x.sfb", 5, 33, 5, 5),
    ("tcgen05.ld.16x32bx2.x4", 17, 1, 1, 5),
    ("tcgen05.st.32x32b.x128", 31, 127, 31, 127),
    ("tcgen05.m128.4x.sfa", 33, 6, 33, 2),
    ("tcgen05.n256.1x.sfb.id3", 2, 31, 0, 226),
    ("tcgen05.n128.1x.sfb.2x2", 64, 4, 0, 96),
    ("mfma.32x32x8.f16.a", 33, 3, 1, 7),
    ("mfma.16x16x32.fp8.b", 17, 7, 15, 1),
    ("mfma.32x32x8.f16.d", 33, 5, 13, 1),
    ("mfma.16x16x4.f64.d", 17, 2, 9, 1),
    ("mfma.16x16x128.f8f6f4.a", 16, 16, 0, 80),
    ("mfma.16x16x128.f8f6f4.a.fp4", 16, 16, 0, 48),
    ("mfma.32x32x64.f8f6f4.sfa.byte1", 33, 1, 1, 1),
]


@pytest.mark.parametrize(("name", "thread", "value", "row", "col"), PLACES)
def test_place_is_as_documented(name: str, thread: int, value: int, row: int, col: int) -> None:
    assert fragment(name).coord(thread, value) == (row, col)
    holders = zip(*(axis.tolist() for axis in fragment(name).holders(row, col)), strict=True)
    assert (thread, value) in list(holders)


@pytest.mark.parametrize(
    ("name", "row", "col", "expected"),
    [
        ("tcgen05.m128.1x.sfa", 33, 0, [(1, 4), (33, 4), (65, 4), (97, 4)]),
        ("tcgen05.n128.1x.sfb.2x2", 0, 65, [(65, 0), (97, 0)]),
        ("wgmma.m64n8k16.bf16.d", 17, 2, [(37, 0)]),
    ],
)
def test_holders_are_all_and_holder_is_the_first(
    name: str, row: int, col: int, expected: list[tuple[int, int]]
) -> None:
    threads, values = fragment(name).holders(row, col)
    assert list(zip(threads.tolist(), values.tolist(), strict=True)) == expected
    assert fragment(name).holder(row, col) == expected[0]
    assert fragment(name).copies == len(expected)


def test_ignored_places_hold_nothing() -> None:
    """Of a scale register only the chosen bytes of the chosen lanes count; M = 64 leaves half of the TMEM lanes empty."""
    row, col = fragment("mma.m16n8k32.mxf8f6f4.1x.sfa.byte2.thread1").elements
    assert np.argwhere(row >= 0).tolist() == [[lane, 2] for lane in range(32) if lane & 2]
    assert ((row < 0) == (col < 0)).all()
    assert np.flatnonzero((fragment("tcgen05.m64n8.1sm.d").elements[0] >= 0).all(axis=1)).tolist() == [
        lane for lane in range(128) if lane % 32 < 16
    ]


@pytest.mark.parametrize(
    ("name", "registers", "slot", "bits", "shift"),
    [
        ("mma.m16n8k16.bf16.a", 4, 16, 16, 0),
        ("mma.m16n8k8.f16.b", 1, 16, 16, 0),
        ("mma.m16n8k8.tf32.a", 4, 32, 32, 0),
        ("mma.m16n8k32.e4m3.b", 2, 8, 8, 0),
        ("mma.m16n8k32.e2m1.a", 4, 8, 4, 2),
        ("mma.m16n8k32.e3m2.a", 4, 8, 6, 0),
        ("mma.m16n8k64.e2m1.a", 4, 4, 4, 0),
        ("mma.m16n8k16.f16.d", 4, 32, 32, 0),
        ("mma.m16n8k16.f16.d.f16", 2, 16, 16, 0),
        ("mma.m16n8k16.f64.a", 8, 64, 64, 0),
        ("mma.m16n8k256.b1.a", 4, 1, 1, 0),
        ("wgmma.m64n256k16.f16.d", 128, 32, 32, 0),
        ("ldmatrix.m8n16.x4.b8x16.b4x16_p64", 4, 8, 4, 0),
        ("ldmatrix.m16n16.x2.b8.trans", 4, 8, 8, 0),
        ("tcgen05.ld.16x256b.x32", 128, 32, 32, 0),
        ("mfma.32x32x64.f8f6f4.a", 8, 8, 8, 0),
        ("mfma.32x32x64.f8f6f4.a.fp4", 4, 4, 4, 0),
        ("mfma.32x32x16.fp8.d", 16, 32, 32, 0),
    ],
)
def test_registers_and_bits_of_a_value(name: str, registers: int, slot: int, bits: int, shift: int) -> None:
    row = fragment(name)
    assert (row.registers, row.slot_bits, row.element_bits, row.element_shift) == (registers, slot, bits, shift)


def test_fp6_of_mfma_is_one_run_of_192_bits() -> None:
    """32 six-bit elements fill six registers without padding, so that an element may straddle two."""
    row = fragment("mfma.16x16x128.f8f6f4.a.fp6")
    assert (row.values, row.register_bits, row.slot_bits, row.registers) == (32, 192, 6, 1)


@pytest.mark.parametrize(
    ("name", "lane", "value", "element"),
    [
        # selector 0: T0 and T1 of each four, a row by halves of a register; selector 1: T2 and T3
        ("mma.sp.m16n8k32.f16.meta", 4, 7, (1, 7)),
        ("mma.sp.m16n8k32.f16.meta", 5, 9, (9, 9)),
        ("mma.sp.m16n8k32.f16.meta", 6, 9, (-1, -1)),
        ("mma.sp.m16n8k32.f16.meta.sel1", 6, 9, (9, 1)),
        ("mma.sp.m16n8k32.f16.meta.sel1", 5, 9, (-1, -1)),
        # one thread of four, by the selector
        ("mma.sp.m16n8k16.bf16.meta.sel3", 7, 15, (9, 7)),
        ("mma.sp.m16n8k8.tf32.meta.sel2", 6, 5, (9, 1)),
        # 8-bit types: a register is a row
        ("mma.sp.m16n8k32.s8.meta.sel1", 7, 15, (9, 15)),
        ("mma.sp.m16n8k64.e5m2.meta", 6, 15, (1, 31)),
        ("wgmma.sp.m64k16.tf32.meta.sel1", 39, 3, (17, 7)),
    ],
)
def test_metadata_is_given_by_the_lanes_of_the_selector(
    name: str, lane: int, value: int, element: tuple[int, int]
) -> None:
    assert tuple(int(axis) for axis in fragment(name).coord(lane, value)) == element


def test_names_by_family() -> None:
    count = {family: len(fragments(family)) for family in FAMILIES}
    assert count == {
        "mma": 212,
        "wgmma": 524,
        "ldmatrix": 18,
        "stmatrix": 9,
        "tcgen05": 649,
        "mfma": 116,
        "wmma": 50,
    } | {
        "mma.sp": 78,
        "wgmma.sp": 10,
        "tcgen05.sp": 39,
    }
    assert len(set(fragments())) == sum(count.values())
    assert all(fragment(name).name == name for name in fragments())


def test_every_row_cites_and_says_since_when() -> None:
    for name in fragments():
        row = fragment(name)
        assert row.source.place
        assert row.since.startswith(("sm_", "gfx"))
        assert row.summary


REFUSED = [
    ("mma.sp.m16n8k64.f16.a", "no mma.sp.m16n8k64", "mma.sp.m16n8k16, mma.sp.m16n8k32"),
    ("mma.sp.m16n8k32.f64.a", "no sparse product of f64", "types are"),
    ("mma.sp.m16n8k64.e4m3.d.f16", "takes no suffix .f16", "are f32"),
    ("tcgen05.sp.m256k32.f16.1sm.meta", "no metadata of m256k32 1sm", "k32, of m64 1sm"),
    ("tcgen05.sp.m128k64.i8.1sm.meta", "no metadata is named by i8", "its kinds"),
    ("tcgen05.sp.m256n64.2sm.d", "M = 128 over two CTAs is what a sparse A changes", "layout C"),
    ("mma.sp.m16n8k32.s8.meta.sel2", "metadata takes no suffix .sel2", "one of 0, 1"),
    ("wgmma.sp.m64k32.f16.a", "no name here", "wgmma.m64nNk16.f16"),
    ("wgmma.sp.m64k32.e4m3.meta", "no wgmma.sp.m64k32", "wgmma.sp.m64k64"),
    ("mma.m16n8k64.e4m3.a", "m16n8k64 does not multiply e4m3", "s4, u4, e2m1"),
    ("mma.m16n16k16.f16.a", "no shape m16n16k16", "m8n8k4, m16n8k8, m16n8k16"),
    ("mma.m16n8k16.bf16.d.f16", "takes no suffix .f16", "are f32"),
    ("mma.m16n8k16.f16.a.col", "takes no suffix .col", "only m8n8k4"),
    ("mma.m16n8k16.bf16.sfa", "no block-scaled mma", "m16n8k64.mxf4nvf4.4x"),
    ("mma.m16n8k64.mxf4.sfa", "without a scale vector", "m16n8k64.mxf4.2x"),
    ("mma.m16n8k16.f32.a", "does not multiply f32", "f16, f64, s8"),
    ("mma.m16n8k16.bf16.a.byte0.thread0", "is not a scale", "block-scaled"),
    ("mma.m16n8k64.mxf4.2x.a", "names scale operands only", "block scaling"),
    ("mma.m16n8k64.mxf4.2x.sfa.byte1.thread0", "byte-id 1", "(0, 2)"),
    ("mma.m16n8k64.mxf4.2x.sfa.byte0.thread2", "thread-id 2", "(0, 1)"),
    ("wgmma.m64n12k16.f16.d", "no N = 12", "steps of 8"),
    ("wgmma.m64n40k32.s8.d", "no N = 40", "steps of 16"),
    ("wgmma.m64n64k16.e4m3.d", "no shape m64n64k16", "m64nNk32"),
    ("wgmma.m64n64k16.bf16.b", "shared memory", "A and D"),
    ("wgmma.m64n64k16.bf16.d.f16", "no suffix .f16", "f32"),
    ("wgmma.m64n64k16.s4.d", "does not multiply s4", "types are"),
    ("ldmatrix.m8n8.x3.b16", "no x3", "x1, x2, x4"),
    ("ldmatrix.m16n16.x1.b8", "needs .trans", "m16n16"),
    ("ldmatrix.m16n16.x4.b8.trans", "m16n16 has no x4", "m16n16 takes x1, x2"),
    ("ldmatrix.m8n8.x1.b8", "no m8n8 of b8", "m8n8 b16"),
    ("stmatrix.m8n16.x1.b8x16.b4x16_p64", "no m8n16", "m16n8 b8"),
    ("tcgen05.m64n64.2sm.d", "no M = 64", "128, 256"),
    ("tcgen05.m128n24.2sm.d", "no N = 24", "steps of 16"),
    ("tcgen05.m128n128.1sm.a", "not an accumulator", "only D"),
    ("tcgen05.ld.16x256b.x64", "no x64", "x32"),
    ("tcgen05.ld.8x32b.x1", "moves no 8x32b", "32x32b"),
    ("tcgen05.n12.1x.sfb", "extent 12", "steps of 8"),
    ("tcgen05.m128.5x.sfa", "5x", "1x, 2x, 4x, 3x, 6x"),
    ("tcgen05.n128.1x.sfa", "not named by N", "rows"),
    ("tcgen05.m128.2x.sfa.id1", "sf_id 1", "(0, 2)"),
    ("tcgen05.n96.1x.sfb.2x2", "no halves", "64"),
    ("tcgen05.n128.2x.sfb.2x2.id1", "sf_id 1", "(0, 2)"),
    ("mfma.16x16x64.fp8.a", "no 16x16x64", "16x16x32"),
    ("mfma.16x16x32.fp9.a", "does not multiply fp9", "fp8"),
    ("mfma.16x16x32.fp8.sfa", "no scale operands", "f8f6f4"),
    ("mfma.16x16x128.f8f6f4.a.fp5", "no suffix .fp5", ".fp6"),
]


@pytest.mark.parametrize(("name", "what", "rule"), REFUSED)
def test_illegal_combination_is_refused_with_the_rule(name: str, what: str, rule: str) -> None:
    with pytest.raises(RefsimError) as caught:
        fragment(name)
    assert caught.value.code == "illegal-fragment"
    assert what in caught.value.what
    assert rule in caught.value.rule
    assert caught.value.where == name


@pytest.mark.parametrize(
    ("name", "near"),
    [("mma.m16n8k16.bf16.x", "mma.m16n8k16.bf16.b"), ("wgma.m64n8k16.bf16.d", "wgmma.m64n8k16.bf16.d"), ("", "")],
)
def test_unknown_name_shows_the_three_nearest(name: str, near: str) -> None:
    with pytest.raises(RefsimError) as caught:
        fragment(name)
    assert caught.value.code == "unknown-fragment"
    assert caught.value.help.count(", ") == 2
    assert near in caught.value.help


def test_family_and_name_are_checked() -> None:
    with pytest.raises(RefsimError, match="no fragment family is called 'wgma'"):
        fragments("wgma")
    with pytest.raises(RefsimError, match="by name, not by 3"):
        fragment(3)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("question", "said"),
    [
        (lambda row: row.coord(128, 0), "thread 128 is outside 0..127"),
        (lambda row: row.coord(0, -1), "value -1 is outside 0..63"),
        (lambda row: row.coord([0, 300], [[0], [1]]), "thread 300 is outside 0..127"),
        (lambda row: row.coord(0.5, 0), "thread is 0.5"),
        (lambda row: row.holder(64, 0), "row 64 is outside 0..63"),
        (lambda row: row.holders(0, 128), "col 128 is outside 0..127"),
    ],
)
def test_out_of_range_says_the_range(question, said: str) -> None:
    with pytest.raises(RefsimError) as caught:
        question(fragment("wgmma.m64n128k32.e4m3.d"))
    assert said in caught.value.what
    assert caught.value.where == "wgmma.m64n128k32.e4m3.d"


def test_arrays_broadcast() -> None:
    row = fragment("wgmma.m64n128k32.e4m3.d")
    rows, cols = row.coord(np.arange(128, dtype=np.uint8)[:, None], np.arange(64))
    assert rows.shape == (128, 64)
    np.testing.assert_array_equal(rows, row.elements[0])
    np.testing.assert_array_equal(cols, row.elements[1])
    threads, values = row.holder(*np.indices(row.shape))
    np.testing.assert_array_equal(row.coord(threads, values), np.indices(row.shape))


def test_a_whole_fragment_is_one_call_of_the_formula_each_way() -> None:
    """64 x 256: 16,384 places as arrays, never one by one; the inverse is derived once, then looked up."""
    asked = []
    row = fragment("wgmma.m64n256k32.e4m3.d")

    def formula(thread: NDArray[np.int64], value: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        asked.append(np.broadcast(thread, value).size)
        return row.formula(thread, value)

    counted = replace(row, formula=formula)
    threads, values = np.indices((row.threads, row.values))
    rows, cols = counted.coord(threads, values)
    assert asked == [64 * 256]
    for _ in range(2):
        np.testing.assert_array_equal(counted.holder(rows, cols), (threads, values))
    assert asked == [64 * 256] * 2


def test_layouts_exports_are_there_twice() -> None:
    """A function that shared its module's name would vanish behind the module once that is imported."""
    for _ in range(2):
        assert layouts.fragment("mma.m16n8k16.bf16.a") is layouts.fragment("mma.m16n8k16.bf16.a")
        assert len(layouts.fragments("mma")) == 212
    for name in dir(layouts):
        assert getattr(layouts, name) is getattr(layouts, name)
    with pytest.raises(AttributeError, match="no attribute 'fragmant'"):
        _ = layouts.fragmant


def test_evidence_names_what_it_rests_on() -> None:
    assert fragment("mfma.32x32x64.f8f6f4.sfa.byte1").evidence is FORMULA
    assert str(FORMULA) == "formula: formula only"
    assert FORMULA.level is Level.FORMULA
    agreed = Evidence(Level.INDEPENDENT, "triton", packages=("triton",))
    assert evidence("mfma.16x16x32.fp8.a") == agreed
    measured = fragment("mma.m16n8k16.bf16.a").evidence
    assert str(measured) == "silicon: H200 2026-11-21, cute, tensor-layouts, triton"
    assert measured.packages == ("cute", "tensor-layouts", "triton")
    assert Level.UNVERIFIED < FORMULA.level < agreed.level < measured.level
    assert measured.runs[0].vectors.startswith("conformance/vectors/")


def test_layouts_and_tensor_cores_rest_on_one_type_of_evidence() -> None:
    assert layouts.Evidence is type(profile("sm_90a", "wgmma", "e4m3", "e4m3", "f32").evidence)
