"""What people type first: a format's family, a mnemonic, a word without 0x, a format as the first argument."""

import json

import numpy as np
import pytest


@pytest.mark.parametrize(
    ("name", "candidates"),
    [
        ("fp8", "e4m3 or e5m2"),
        ("float8", "e4m3 or e5m2"),
        ("FP8", "e4m3 or e5m2"),
        ("mxfp8", "e4m3 or e5m2"),
        ("fp6", "e2m3 or e3m2"),
        ("bf8", "e5m2 or e5m2fnuz"),
    ],
)
@pytest.mark.parametrize(
    "command", ["formats NAME", "decode -t NAME 1", "encode NAME 1", "table NAME", "mma -t NAME --a 1 --b 1"]
)
def test_a_family_of_formats_asks_which(command, name, candidates, refsim):
    run = refsim(*command.replace("NAME", name).split())
    assert (run.code, run.out) == (2, "")
    assert run.err.startswith(f"[ambiguous-name] {name} is {candidates}\n")
    assert f"help: name one: {candidates}" in run.err


@pytest.mark.parametrize(
    ("name", "row"),
    [
        ("fp4", "e2m1"),
        ("float4", "e2m1"),
        ("hf8", "e4m3"),
        ("fp8_e4m3", "e4m3"),
        ("__nv_fp8_e5m2", "e5m2"),
        ("f8e4m3fn", "e4m3"),
        ("fp6_e3m2", "e3m2"),
        ("FP8_E4M3FNUZ", "e4m3fnuz"),
    ],
)
def test_names_with_a_width_are_read(name, row, refsim):
    assert refsim("formats", name).out.splitlines()[0].split() == ["format", row]


def test_a_width_that_is_not_the_formats_is_refused(refsim):
    assert refsim("formats", "fp8_e2m1").err.startswith("[unknown-format]")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("decode -t e4m3 0x7e 0xff", "decode e4m3 0x7e 0xff"),
        ("encode -t e4m3 0.3 nan", "encode e4m3 0.3 nan"),
        ("table -t e2m1", "table e2m1"),
    ],
)
def test_a_format_stands_behind_t_or_first(one, other, refsim):
    assert refsim(*one.split()).out == refsim(*other.split()).out != ""


@pytest.mark.parametrize("command", ["decode e4m3", "encode bf16", "table", "decode 1", "encode 1"])
def test_what_is_missing_is_said(command, refsim):
    run = refsim(*command.split())
    assert (run.code, run.out) == (2, "")
    assert run.err.startswith("[missing-argument]")


def test_two_formats_contradict(refsim):
    run = refsim("table", "e4m3", "-t", "e5m2")
    assert run.code == 2
    assert "contradicts" in run.err


def test_a_mnemonic_lists_its_forms(refsim):
    run = refsim("ptx", "explain", "prmt")
    assert run.code == 0
    assert "prmt.b32{.mode:" in run.out
    assert "four bytes" in run.out
    some = refsim("ptx", "explain", "cvt.satfinite.e4m3x2")
    assert "cvt.rn.satfinite.e4m3x2.f32" in some.out
    assert "e5m2x2" not in some.out
    assert refsim("ptx", "explain", "prnt").code == 2


def test_a_list_of_forms_has_one_sentence_each_and_an_opcode_has_all(refsim):
    listed, one = (refsim("ptx", "explain", name).out for name in ("bmsk", "bmsk.clamp.b32"))
    first = "Return b set bits from bit a up: bmsk.wrap.b32 of 1 and 2 is 6."
    assert first in listed
    assert "`.wrap` takes" not in listed
    assert f"{first} `.wrap` takes" in " ".join(one.split())


@pytest.mark.parametrize(
    ("word", "ways"),
    [
        ("4000004000000041", "0x4000004000000041 if it is hexadecimal, 0xe35fb81852829 if it is decimal"),
        ("40000040000000ff", "0x40000040000000ff"),
        ("10", "0x10 if it is hexadecimal, 0xa if it is decimal"),
    ],
)
@pytest.mark.parametrize("command", ["desc decode wgmma-smem WORD", "desc walk wgmma-smem WORD wgmma.m64n8k16.bf16.b"])
def test_a_word_without_0x_is_never_taken_for_a_decimal(command, word, ways, refsim):
    run = refsim(*command.replace("WORD", word).split())
    assert (run.code, run.out) == (2, "")
    assert run.err.startswith(f"[bad-value] {word} stands without 0x\n")
    assert f"help: give {ways}\n" in run.err


def test_an_opcode_lists_its_fragments(refsim):
    run = refsim("layout", "list", "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32")
    assert [line.split()[0] for line in run.out.splitlines()[1:]] == [f"mma.m16n8k16.bf16.{each}" for each in "abcd"]


@pytest.mark.parametrize(
    ("words", "wavefronts"),
    [
        ("ldmatrix.m8n8.x4.b16 --tile 16x64", 32),
        ("ldmatrix.m8n8.x4.b16 --tile 16x64 --swizzle 128B", 4),
        ("ldmatrix.m8n8.x4.b16 --tile 32x8", 4),
        ("ldmatrix.m8n8.x4.b16 --tile 8x32", 16),
        ("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 --tile 32x64 --swizzle 128B", 4),
        ("stmatrix.m8n8.x2.b16 --tile 16x64", 16),
        ("--layout ldmatrix.m8n8.x1.b16 --tile 8x64", 8),
        ("mma.m16n8k16.bf16.b --swizzle 32B --width 4", 2),
    ],
)
def test_banks_takes_a_fragment(words, wavefronts, refsim):
    run = refsim("banks", *words.split(), "--as", "json")
    assert run.code == 0, run.err
    assert json.loads(run.out)["wavefronts"] == wavefronts


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ("ldmatrix.m8n8.x4.b16", "missing-argument"),
        ("ldmatrix.m8n8.x4.b16 --tile 12x64", "bad-access"),
        ("ldmatrix.m8n8.x4.b16 --tile 8x16", "bad-access"),
        ("ldmatrix --tile 16x64", "ambiguous-name"),
        ("0 4 8 --tile 16x64", "usage"),
    ],
)
def test_banks_asks_for_what_is_missing(words, code, refsim):
    run = refsim("banks", *words.split())
    assert (run.code, run.out) == (2, "")
    assert run.err.startswith(f"[{code}]")


def test_scales_are_shuffled_from_a_file_alone(refsim, tmp_path):
    np.save(tmp_path / "sf.npy", np.arange(33 * 3, dtype=np.uint8).reshape(33, 3))
    short = refsim("scales", "shuffle", "sf.npy", "-t", "e8m0")
    assert short.code == 0, short.err
    assert "(nvidia_128x4) to sf.shuffled.npy" in short.out
    for words in (("sf.npy", "a.npy"), ("nvidia_128x4", "sf.npy", "b.npy"), ("cdna4_32", "sf.npy")):
        assert refsim("scales", "shuffle", *words, "-t", "e8m0").code == 0
    first, second = (np.load(tmp_path / name) for name in ("a.npy", "b.npy"))
    assert np.array_equal(first, second)
    assert not np.array_equal(np.load(tmp_path / "sf.shuffled.npy"), first)


def test_a_walk_takes_the_opcode_of_wgmma(refsim):
    opcode = "wgmma.mma_async.sync.aligned.m64n8k32.f32.e4m3.e5m2.b"
    one, other = (
        refsim("desc", "walk", "wgmma-smem", "0x4000004000000040", name, "--as", "json")
        for name in (opcode, "wgmma.m64n8k32.e4m3.e5m2.b")
    )
    assert one.out == other.out != ""


@pytest.mark.parametrize(
    ("words", "unit"),
    [
        ("-t e4m3 --target sm_100a", "tcgen05.f8f6f4"),
        ("-t e4m3 --target sm_100", "mma.sync"),
        ("-t e2m1 --target sm_120a", "mma.sync"),
        ("-t e2m1 --target sm_120a --a-scale 1,1,1,1 --b-scale 1,1,1,1 --scale-format ue4m3", "mma.sync.mxf4nvf4"),
        ("-t f64", "mma.sync"),
        ("-t bf16 --target sm_86", "mma.sync"),
        ("--unit mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 --target sm_80", "mma.sync"),
        ("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 --target sm_80", "mma.sync"),
        ("tcgen05.mma.cta_group::1.kind::f8f6f4 -t e4m3 --target sm_100a", "tcgen05.f8f6f4"),
        ("tcgen05.mma.sp.cta_group::2.kind::f16 -t bf16 --target sm_100a", "tcgen05.f16"),
    ],
)
def test_mma_takes_the_unit_of_the_target_and_says_so(words, unit, refsim):
    run = refsim("mma", *words.split(), "--a", "1", "--b", "1")
    assert run.code == 0, run.err
    assert f" {unit} " in run.out.splitlines()[1]
    assert (f"unit {unit}, which kernels of" in run.err) == ("mma." not in words)


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ("-t e4m3 --unit wgmma --target sm_90", "wrong-target"),
        ("-t e4m3 --unit tcgen05.f8f6f4 --target sm_100", "wrong-target"),
        ("-t e2m1 --unit mma.sync --target sm_120", "wrong-target"),
        ("-t e4m3 --unit mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32", "usage"),
        ("-t f16 --target sm_91", "unknown-target"),
        ("wgmma -t e4m3 --unit mma.sync", "usage"),
    ],
)
def test_mma_refuses_what_the_target_has_not(words, code, refsim):
    run = refsim("mma", *words.split(), "--a", "1", "--b", "1")
    assert (run.code, run.out) == (2, "")
    assert run.err.startswith(f"[{code}]")
