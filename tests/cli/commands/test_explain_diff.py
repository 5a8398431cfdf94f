"""refsim explain-diff: files, operands, quantisers and cases; what each exit code says."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from refsim import decode, encode, files, quantize
from refsim.testing import explain_problem, find_kernels
from refsim.testing.matrices import Values
from refsim.testing.replay import write_case

EXHIBITS = Path(__file__).parents[3] / "gpu/exhibits/bindings.py"
RANDOM = np.random.default_rng(0)


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    codes = RANDOM.integers(0, 0x78, (12, 20)).astype(np.uint8)
    files.save("right.npy", codes, "e4m3")
    files.save("turned.npy", codes.T.reshape(codes.shape), "e4m3")
    files.save("other.npy", RANDOM.integers(0, 0x78, (12, 20)).astype(np.uint8), "e4m3")
    return tmp_path


def test_the_transpose_is_named_and_the_exit_code_is_1(refsim, here):
    run = refsim("explain-diff", "turned.npy", "right.npy", "--as", "json")
    found = json.loads(run.out)
    assert run.code == 1
    assert [cause["family"] for cause in found["named"][0]["causes"]] == ["transposed"]
    assert found["outcome"] == "explained"
    assert found["named"][0]["repaired"] == found["differing"]


def test_what_nothing_explains_is_inconclusive(refsim, here):
    run = refsim("explain-diff", "other.npy", "right.npy", "--seconds", "1")
    assert run.code == 5
    assert run.out.startswith("unexplained: ")
    assert "excluded" in run.out


def test_scales_of_another_recipe_are_named(refsim, here):
    x = RANDOM.normal(0, 100, (8, 1024)).astype(np.float32)
    files.save("x.npy", x)
    files.save("s.npy", quantize(x, "mxfp8", recipe="floor").scales, "e8m0")
    run = refsim("explain-diff", "s.npy", "--quantized", "x.npy", "--to", "mxfp8")
    assert run.code == 1
    assert "scale rule: the rule floor" in run.out


def test_codes_and_scales_of_one_cause(refsim, here):
    """A quantiser without abs: its codes and its scales are explained by that together."""
    x = RANDOM.normal(0, 100, (8, 1024)).astype(np.float32)
    files.save("x.npy", x)
    amax = np.maximum(x.reshape(8, 8, 128).max(axis=2), np.float32(1e-4))
    scales = amax / np.float32(448)
    files.save("s.npy", scales)
    spread = (np.float32(1) / scales).repeat(128, 1)
    files.save("q.npy", encode(x * spread, "e4m3"), "e4m3")
    run = refsim("explain-diff", "q.npy", "--scales", "s.npy", "--quantized", "x.npy", "--to", "1x128", "--as", "json")
    found = json.loads(run.out)
    assert run.code == 1
    assert {cause["family"] for named in found["named"] for cause in named["causes"]} == {"amax of other elements"}
    assert found["size"] == x.size + scales.size
    alone = json.loads(refsim("explain-diff", "q.npy", "--quantized", "x.npy", "--to", "1x128", "--as", "json").out)
    assert "scales would be others" in alone["beside"][0]


def test_values_times_scales_of_other_rows(refsim, here):
    x, scales = RANDOM.normal(0, 1, (16, 32)).astype(np.float32), RANDOM.uniform(1, 2, 16).astype(np.float32)
    files.save("x.npy", x)
    files.save("s.npy", scales)
    files.save("y.npy", x * scales[np.arange(16) % 8][:, None])
    run = refsim("explain-diff", "y.npy", "--values", "x.npy", "--scales", "s.npy")
    assert run.code == 1
    assert "elements have the scale of the first 8 rows again" in run.out


def test_two_tensors_of_one_file_have_their_names(refsim, here):
    codes = RANDOM.integers(0, 0x78, (8, 12)).astype(np.uint8)
    np.savez("both.npz", got=codes.T.reshape(codes.shape), want=codes)
    line = ("explain-diff", "both.npz", "both.npz", "-t", "e4m3", "--key", "got", "--key", "want")
    run = refsim(*line)
    assert (run.code, "transposed" in run.out) == (1, True)
    assert refsim(*line[:-2]).code == 0  # one name stands for both
    assert "[usage]" in refsim(*line, "--key", "third").err


def test_operands_and_one_element(refsim, here):
    a = RANDOM.integers(0, 0x60, (8, 64)).astype(np.uint8)
    files.save("a.npy", a, "e4m3")
    from refsim.numerics import mma

    files.save("d.npy", mma(a, a, unit="mma.sync", target="sm_89"))
    run = refsim("explain-diff", "d.npy", "--a", "a.npy", "--b", "a.npy", "--at", "2,3")
    assert run.code == 1
    assert "accumulator width and chip: sm_89 mma.sync" in run.out
    assert "element [2, 3]" in run.out
    assert "32..63" in run.out


def test_a_norm_without_its_weights(refsim, here):
    x, w = (encode(RANDOM.normal(0, 1, shape), "bf16") for shape in ((6, 80), (80,)))
    from refsim.oracles import rms_norm

    files.save("x.npy", x, "bf16")
    files.save("w.npy", w, "bf16")
    files.save("y.npy", rms_norm(x, np.full(80, 0x3F80, np.uint16), 1e-5), "bf16")
    line = ("explain-diff", "y.npy", "--row", "rms_norm", "--x", "x.npy", "--eps", "1e-5")
    run = refsim(*line, "--weight", "w.npy")
    assert run.code == 1
    assert "cause  weights left out or plus one: weights are left out; reproduces every bit" in run.out
    assert refsim(*line).code == 0


def test_operands_whose_files_do_not_name_their_format(refsim, here):
    """uint16 is how bf16 leaves a framework: -t is what was written, --operand-format what was read."""
    from refsim.oracles import rms_norm

    x, w = (encode(RANDOM.normal(0, 1, shape), "bf16") for shape in ((6, 80), (80,)))
    for name, codes in {"x.npy": x, "w.npy": w, "y.npy": rms_norm(x, w, 1e-6)}.items():
        np.save(name, codes)
    line = ("explain-diff", "y.npy", "-t", "bf16", "--row", "rms_norm", "--x", "x.npy", "--weight", "w.npy")
    bare = refsim(*line)
    assert (bare.code, "help: give --operand-format FORMAT" in bare.err) == (2, True)
    assert refsim(*line, "--operand-format", "bf16").code == 0
    assert "[unknown-format]" in refsim(*line, "--operand-format", "e9").err
    quantized = refsim("explain-diff", "y.npy", "-t", "bf16", "--quantized", "x.npy", "--to", "1x128")
    assert "help: give --operand-format FORMAT" in quantized.err
    assert "--operand-format with outputs alone" in refsim(*line[:4], "x.npy", "--operand-format", "bf16").err


def test_attention_whose_mask_begins_at_the_first_key(refsim, here):
    from refsim.oracles import attention

    q, k, v = (encode(RANDOM.normal(0, 1, (2, length, 64)), "bf16") for length in (6, 70, 70))
    for name, codes in zip("qkv", (q, k, v), strict=True):
        files.save(f"{name}.npy", codes, "bf16")
    seen = np.stack(
        [attention(q[:, at : at + 1], k[:, : at + 1], v[:, : at + 1], 0.125).o[:, 0] for at in range(6)], axis=1
    )
    files.save("o.npy", seen, "bf16")
    line = ("explain-diff", "o.npy", "--attention", "--q", "q.npy", "--k", "k.npy", "--v", "v.npy", "--causal")
    run = refsim(*line)
    assert run.code == 1
    assert "cause  another mask: the first row sees one key, each later row one more; reproduces every bit" in run.out
    files.save("o.npy", attention(q, k, v, 0.125, causal=True).o, "bf16")
    files.save("lse.npy", attention(q, k, v, 0.125, causal=True).lse)
    assert refsim(*line).code == 0
    assert refsim("explain-diff", "lse.npy", *line[2:]).code == 0


def exhibit(name):
    return next(kernel for kernel in find_kernels([EXHIBITS]) if kernel.name == name)


def test_a_case_of_a_kernel_is_explained_by_what_the_kernel_declares(refsim, here):
    kernel = exhibit("row_offset")
    case = write_case(here, kernel, kernel.corpus[1], {"name": "sim"}, "60 elements differ")
    run = refsim("explain-diff", str(case), "--trust")
    assert run.code == 1
    assert "a mistake that the kernel declares: row n of X taken from element n on" in run.out
    again = refsim("explain-diff", "row_offset", str(case), "--kernels", str(EXHIBITS))
    assert again.out == run.out


def test_a_kernel_that_agrees_has_no_cause():
    from refsim import device

    kernel = exhibit("row_offset")
    [found] = explain_problem(kernel, kernel.corpus[0], device.open("sim"), seconds=1).values()
    assert (found.outcome, found.differing, found.named) == ("equal", 0, ())


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("right.npy", "usage"),
        ("right.npy --a right.npy", "usage"),
        ("right.npy --to mxfp8", "usage"),
        ("right.npy --quantized right.npy", "usage"),
        ("right.npy --a-scale 2", "usage"),
        ("right.npy --scales right.npy", "usage"),
        ("right.npy --x right.npy", "usage"),
        ("right.npy --eps 1", "usage"),
        ("right.npy --row softmax", "usage"),
        ("right.npy --scale 2", "usage"),
        ("right.npy --q right.npy", "usage"),
        ("right.npy --k right.npy", "usage"),
        ("right.npy --attention --q right.npy --k right.npy", "usage"),
        ("right.npy --attention --row softmax", "usage"),
        ("right.npy --attention --q right.npy --k 16 --v right.npy", "usage"),
        ("right.npy --attention --q right.npy --k right.npy --v right.npy", "format-mismatch"),
        ("right.npy --row softmax --x right.npy", "format-mismatch"),
        ("right.npy --row silu --x right.npy --a right.npy --b right.npy", "usage"),
        ("right.npy --a right.npy --b right.npy --at 12,0", "out-of-range"),
        ("right.npy --key one --key other", "usage"),
        ("right.npy right.txt", "unknown-suffix"),
        ("nothing", "unknown-suffix"),
        ("right.npy --a right.npy --b right.npy --a-scale two", "bad-value"),
    ],
)
def test_what_is_asked_wrongly_is_refused(refsim, here, line, code):
    run = refsim("explain-diff", *line.split())
    assert run.code == 2
    assert f"[{code}]" in run.err


def test_a_declared_mistake_is_not_named_by_nan_alone():
    """Whatever is wrong with a kernel, NaN everywhere is what it may write."""
    from refsim import device

    declared = exhibit("row_offset")
    problem = replace(declared.corpus[0], x=Values("zeros", patches=((0, 0x7FC0), (1, 0x7FC0))), output=20, reduction=2)
    nan, zeros = ({"y": np.full((1, 20), code, np.uint16)} for code in (0x7FFF, 0))
    kernel = replace(declared, suspects={"any": lambda problem: nan}, oracle=lambda problem: zeros)
    [found] = explain_problem(kernel, problem, device.open("sim"), seconds=0).values()
    assert (found.differing, found.named) == (20, ())


def test_packed_codes_of_four_bits_are_read(refsim, here):
    codes = RANDOM.integers(0, 16, (16, 64)).astype(np.uint8)
    swapped = codes.reshape(16, -1, 2)[:, :, ::-1].reshape(16, 64)
    for name, each in (("got", swapped), ("want", codes)):
        np.save(f"{name}.npy", each[:, ::2] | each[:, 1::2] << 4)
    run = refsim("explain-diff", "got.npy", "want.npy", "-t", "e2m1")
    assert "order of codes in a byte: elements lie with the two codes of a byte exchanged" in run.out


def test_the_file_of_the_unknown_suffix_is_named(refsim, here):
    run = refsim("explain-diff", "right.txt", "right.npy")
    assert (run.code, "'.txt' chooses no container" in run.err) == (2, True)


def test_a_scale_beyond_f32_is_refused(refsim, here):
    run = refsim("explain-diff", "right.npy", "--a", "right.npy", "--b", "right.npy", "--a-scale", "1e99")
    assert (run.code, "[bad-value]" in run.err) == (2, True)


def test_rows_have_the_experts_of_a_file(refsim, here):
    from conformance.explained import arithmetic as own

    rows, experts = RANDOM.integers(0, 0x70, (32, 32)).astype(np.uint8), RANDOM.integers(0, 0x70, (2, 12, 32))
    index = np.repeat(np.array([0, 1], np.int32), 16)
    files.save("a.npy", rows, "e4m3")
    files.save("b.npy", experts.astype(np.uint8), "e4m3")
    np.save("index.npy", index)
    made = [own.hopper(rows[16 * at : 16 * at + 16], experts[1 - at].astype(np.uint8)) for at in (0, 1)]
    files.save("d.npy", np.concatenate(made))
    run = refsim("explain-diff", "d.npy", "--a", "a.npy", "--b", "b.npy", "--m-indices", "index.npy")
    assert (run.code, "another batch or expert: B: they are those of the next group" in run.out) == (1, True)
    np.save("index.npy", index.astype(np.int64))
    assert refsim("explain-diff", "d.npy", "--a", "a.npy", "--b", "b.npy", "--m-indices", "index.npy").out == run.out
    np.save("index.npy", index.astype(np.float64))
    refused = refsim("explain-diff", "d.npy", "--a", "a.npy", "--b", "b.npy", "--m-indices", "index.npy")
    assert (refused.code, "an array of int32: one index for each row of A" in refused.err) == (2, True)


def test_products_of_integers(refsim, here):
    a, b = (RANDOM.integers(-128, 128, (rows, 64)).astype(np.int8) for rows in (12, 16))
    zeros = RANDOM.integers(-9, 9, 16).astype(np.int32)
    total = (a.astype(np.int64) - 3) @ (b.astype(np.int64) - zeros[:, None]).T
    for name, each in {"a": a, "b": b, "zb": zeros, "d": total.astype(np.int32)}.items():
        np.save(f"{name}.npy", each)
    line = ("explain-diff", "d.npy", "--a", "a.npy", "--b", "b.npy", "--a-format", "s8", "--b-zero", "zb.npy")
    assert refsim(*line, "--a-zero", "3").code == 0
    run = refsim(*line, "--a-zero", "0")
    assert (run.code, "the zero point of A is 3 too large: 0 became 3" in run.out) == (1, True)
    np.save("d.npy", (a.astype(np.int64) @ b.astype(np.int64).T).astype(np.int32))
    run = refsim(*line, "--a-zero", "3")
    assert (run.code, "the zero points of A and B: each is left out" in run.out) == (1, True)
    np.save("d.npy", np.clip(np.rint(total.astype(np.float32) * np.float32(0.001)), -128, 127).astype(np.int8))
    run = refsim(*line, "--a-zero", "3", "--a-scale", "0.001")
    assert (run.code, "rounded to nearest even to s8" in run.out) == (0, True)
    assert "[bad-value]" in refsim(*line, "--a-zero", "three").err
    assert "--interval with a product of integers" in refsim(*line, "--interval", "128").err
    assert "[usage]" in refsim("explain-diff", "d.npy", "d.npy", "-t", "e4m3", "--d-format", "s8").err


def test_packed_integers_of_four_bits(tmp_path):
    from refsim.cli.operand_files import integer_words
    from refsim.formats import S4, U4

    codes = RANDOM.integers(0, 16, (4, 32)).astype(np.uint8)
    for name, each in {"packed": codes[:, ::2] | codes[:, 1::2] << 4, "each": codes}.items():
        np.save(tmp_path / f"{name}.npy", each)
        assert (integer_words(tmp_path / f"{name}.npy", U4) == codes).all()
    np.save(tmp_path / "signed.npy", np.where(codes > 7, codes.astype(np.int8) - 16, codes).astype(np.int8))
    assert (integer_words(tmp_path / "signed.npy", S4) == codes).all()


def test_weights_of_four_bits(refsim, here):
    from refsim.numerics import mma

    x = encode(RANDOM.normal(0, 1, (12, 64)), "bf16")
    codes, scales = RANDOM.integers(0, 16, (16, 64)).astype(np.uint8), RANDOM.uniform(0.1, 1, (16, 2))
    files.save("x.npy", x, "bf16")
    np.save("w.npy", codes[:, ::2] | codes[:, 1::2] << 4)
    files.save("s.npy", scales.astype(np.float32))
    spread = scales.astype(np.float32).repeat(32, 1)
    for name, zero in (("right", 8), ("none", 0)):
        w = encode((codes.astype(np.float32) - np.float32(zero)) * spread, "bf16")
        files.save(f"{name}.npy", mma(x, w, a_format="bf16", b_format="bf16"))
    line = ("--a", "x.npy", "--b", "w.npy", "--b-format", "u4", "--b-scale", "s.npy")
    assert refsim("explain-diff", "right.npy", *line, "--b-zero", "8").code == 0
    run = refsim("explain-diff", "none.npy", *line, "--b-zero", "8")
    assert (run.code, "zero point: the zero point is left out" in run.out) == (1, True)
    assert "[usage]" in refsim("explain-diff", "right.npy", *line[:-2]).err
    assert "[usage]" in refsim("explain-diff", "right.npy", *line, "--a-scale", "2").err


@pytest.mark.parametrize(
    "option", [("--unit", "wgmma"), ("--interval", "128"), ("--b-format", "e4m3"), ("--d-zero", "3")]
)
def test_options_of_a_product_need_operands(refsim, here, option):
    run = refsim("explain-diff", "turned.npy", "right.npy", *option)
    assert (run.code, f"{option[0]} with outputs alone" in run.err) == (2, True)


def test_weights_whose_file_says_their_format(refsim, here):
    from refsim.numerics import mma

    x, w = encode(RANDOM.normal(0, 1, (12, 64)), "bf16"), encode(RANDOM.normal(0, 1, (16, 64)), "e4m3")
    files.save("x.safetensors", x, "bf16")
    files.save("w.safetensors", w, "e4m3")
    files.save("d.npy", mma(x, encode(decode(w, "e4m3") / 2, "bf16"), a_format="bf16", b_format="bf16"))
    assert refsim("explain-diff", "d.npy", "--a", "x.safetensors", "--b", "w.safetensors", "--b-scale", "0.5").code == 0
