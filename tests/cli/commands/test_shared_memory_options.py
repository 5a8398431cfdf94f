"""Options of `refsim banks` with a fragment, and of `refsim desc encode` with an operand tile."""

import json

import pytest

from refsim.layouts import fragment, layout_conflicts, operand_descriptor, tile


def banks(refsim, line: str) -> dict:
    run = refsim("banks", *line.split(), "--as", "json")
    assert run.code == 0, run.err
    return json.loads(run.out)


def test_a_fragment_is_loaded_from_the_smallest_tile_that_holds_it(refsim):
    """A 128B atom has 64 columns of bf16, the fragment 16: the other columns are not accessed."""
    made = tile("K", "128B", 2, (16, 64))
    want = layout_conflicts(fragment("mma.m16n8k16.bf16.a"), made, 4)
    for more in ("", " --tile 16x64"):
        found = banks(refsim, f"--layout mma.m16n8k16.bf16.a --swizzle 128B --width 4{more}")
        assert (found["wavefronts"], found["excess"]) == (want.total, want.excess) == (4, 0)


def test_a_fragment_takes_the_options_of_addresses(refsim):
    line = "--layout mma.m16n8k16.bf16.a --tile 16x64"
    assert banks(refsim, f"{line} --width ld.shared.b32")["width"] == 4
    assert banks(refsim, line)["width"] == 2
    few = banks(refsim, f"{line} --width 4 --lanes 8")
    assert {row["lanes"] for row in few["phases"]} == {"0..7"}
    at_byte_4096 = banks(refsim, f"{line} --width 4 --start 4096")
    assert at_byte_4096["wavefronts"] == banks(refsim, f"{line} --width 4")["wavefronts"]


def test_a_fragment_is_named_with_or_without_the_option(refsim):
    for name in ("mma.m16n8k16.bf16.a", "mma.m16n8k16.bf16.b", "ldmatrix.m8n16.x1.b8x16.b4x16_p64 --tile 32x64"):
        assert banks(refsim, name) == banks(refsim, f"--layout {name}")


def test_rows_of_four_and_six_bits_take_sixteen_bytes(refsim):
    want = banks(refsim, "ldmatrix.m16n16.x1.b8.trans --tile 32x64")["width"]
    for types in ("b6x16_p32", "b4x16_p64"):
        found = banks(refsim, f"ldmatrix.m8n16.x1.b8x16.{types} --tile 32x64")
        assert (found["width"], found["wavefronts"]) == (want, 4)


def test_scale_factors_that_some_lanes_lack_are_no_access(refsim):
    run = refsim("banks", "mma.m16n8k64.mxf4.2x.sfb")
    assert (run.code, run.out) == (2, "")
    assert "some lanes hold no element of mma.m16n8k64.mxf4.2x.sfb" in run.err


def test_a_tile_that_does_not_hold_the_fragment_is_refused(refsim):
    run = refsim("banks", "--layout", "mma.m16n8k16.bf16.a", "--tile", "8x64")
    assert (run.code, run.out) == (2, "")
    assert "8" in run.err


@pytest.mark.parametrize("major", ["K", "MN"])
@pytest.mark.parametrize("swizzle", ["none", "32B", "64B", "128B"])
@pytest.mark.parametrize("kind", ["wgmma-smem", "tcgen05-smem"])
def test_byte_offsets_of_a_descriptor_follow_from_the_tile(refsim, kind, swizzle, major):
    """The word is that of the Python call, for a bf16 tile of 128 x 64 and its second half of K."""
    want = operand_descriptor(kind, tile(major, swizzle, 2, (128, 64)), 2048, k=32)
    line = f"desc encode {kind} start_address=2048 swizzle={swizzle} k=32 --tile 128x64 -t bf16 --major {major}"
    run = refsim(*line.split(), "--as", "json")
    assert int(json.loads(run.out)["word"], 16) == want
    fields = json.loads(run.out)["fields"]
    assert f"stride_byte_offset = {fields['stride_byte_offset']}\n" in refsim(*line.split()).out


@pytest.mark.parametrize(("row", "size"), [("e4m3", 1), ("f16", 2), ("tf32", 4), ("f32", 4)])
def test_elements_of_a_tile_are_as_wide_as_in_memory(refsim, row, size):
    """tf32 has 19 bits, and 32 in memory."""
    want = operand_descriptor("wgmma-smem", tile("K", "128B", size, (64, 256 // size)), 0, k=128 // size)
    line = f"desc encode wgmma-smem swizzle=128B k={128 // size} --tile 64x{256 // size} -t {row}"
    assert int(json.loads(refsim(*line.split(), "--as", "json").out)["word"], 16) == want


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("wgmma-smem --tile 128x64", "'-t'"),
        ("wgmma-smem stride_byte_offset=1024 --tile 128x64 -t bf16", "stride_byte_offset with --tile"),
        ("tcgen05-instr.f16 --tile 128x64 -t bf16", "one of wgmma-smem, tcgen05-smem"),
        ("tensormap data_type=bfloat16 dims=64,64 box=64,8 --tile 64x64 -t bf16", "give dims= and box="),
        ("wgmma-smem --tile 128x64 -t e2m1", "e2m1 has elements of 4 bits"),
    ],
)
def test_a_tile_says_the_offsets_alone(refsim, words, said):
    run = refsim("desc", "encode", *words.split())
    assert (run.code, run.out) == (2, "")
    assert said in run.err


def test_a_fragment_without_types_asks_for_them(refsim):
    """Every accumulator of wgmma at 64 x 128 is listed, whatever its K; with a type the name is found."""
    run = refsim("layout", "where", "wgmma.m64n128.d", "37", "90")
    assert run.code == 2
    for name in ("k16.f16.d", "k16.bf16.d", "k8.tf32.d", "k32.e4m3.d", "k32.e5m2.d", "k32.s8.d", "k32.u8.d"):
        assert f"wgmma.m64n128{name}" in run.err
    short, whole = (
        refsim("layout", "where", name, "37", "90").out for name in ("wgmma.m64n128.e4m3.d", "wgmma.m64n128k32.e4m3.d")
    )
    assert short == whole
