"""refsim explain-diff on whole examples, one for each kind of operands: what it prints, except counts of other causes."""

import numpy as np
import pytest

import refsim
from refsim.causes import ProductOperands, explain_diff
from refsim.oracles import attention, fp8_gemm_1d2d, rms_norm

SAVE = refsim.files.save


def slow_accumulation(random):
    a, b = (refsim.encode(random.normal(0, 1, (rows, 512)), "e4m3") for rows in (32, 48))
    SAVE("a.npy", a, "e4m3")
    SAVE("b.npy", b, "e4m3")
    ones = np.ones((32, 4), np.float32)
    SAVE("slow.npy", fp8_gemm_1d2d(a, b, ones, ones[:1], out="f32"))


def codes_of_another_format(random):
    codes = refsim.encode(random.normal(0, 1, (64, 64)), "e4m3")
    SAVE("mine.npy", codes, "e4m3")
    SAVE("theirs.npy", refsim.encode(refsim.decode(codes, "e4m3"), "e4m3fnuz"), "e4m3")  # as it came from another chip


def quantizer_without_abs(random):
    x = random.normal(0, 100, (8, 1024)).astype(np.float32)
    amax = np.maximum(x.reshape(8, 8, 128).max(axis=2), np.float32(1e-4))
    scales = amax / np.float32(448)
    SAVE("x.npy", x)
    SAVE("s.npy", scales)
    SAVE("q.npy", refsim.encode(x * (1 / scales).repeat(128, 1), "e4m3"), "e4m3")


def norm_whose_weights_begin_again(random):
    """The weights begin again after the 128 threads of a block."""
    x, w = (refsim.encode(random.normal(0, 1, shape), "bf16") for shape in ((16, 300), (300,)))
    SAVE("x.npy", x, "bf16")
    SAVE("w.npy", w, "bf16")
    SAVE("norm.npy", rms_norm(x, w[np.arange(300) % 128], 1e-5), "bf16")


def attention_with_a_mask_from_the_first_key(random):
    q, k, v = (refsim.encode(random.normal(0, 1, (1, length, 64)), "bf16") for length in (16, 48, 48))
    for name, codes in (("q", q), ("k", k), ("v", v)):
        SAVE(f"{name}.npy", codes, "bf16")
    SAVE("o.npy", attention(q, k[:, :16], v[:, :16], 0.125, causal=True).o, "bf16")


ABS = "amax of other elements: amax is the largest number: abs is forgotten"
CHAINS = "fast / slow accumulation: a chain for every 128 columns, their sums added in float32"
RANGES = "split-K: 4 ranges of K, whole tiles of 32 columns, added ascending"
EXAMPLES = {
    "slow.npy --a a.npy --b b.npy --at 0,0": (
        slow_accumulation,
        "1468 of 1536 elements differ (95.6 %)",
        [f"{CHAINS}; reproduces every bit", f"{RANGES}; reproduces every bit; 3 more of the kind"],
        [f"{CHAINS} | {RANGES}: 566 of 576 elements differ on drawn numbers, 24 x 24, seed 1"],
    ),
    "theirs.npy mine.npy -t e4m3": (
        codes_of_another_format,
        "4094 of 4096 elements differ (100 %)",
        ["FN / FNUZ: elements are codes of e4m3fnuz; reproduces every bit"],
        [],
    ),
    "q.npy --quantized x.npy --to 1x128": (
        quantizer_without_abs,
        "4088 of 8192 elements differ (49.9 %)",
        [f"{ABS}; reproduces every bit"],
        [f"{ABS}: 39 of 64 scales would be others"],
    ),
    "q.npy --scales s.npy --quantized x.npy --to 1x128": (
        quantizer_without_abs,
        "4127 of 8256 elements differ (50 %)",
        [f"{ABS}; reproduces every bit"],
        [],
    ),
    "norm.npy --row rms_norm --x x.npy --weight w.npy --eps 1e-5": (
        norm_whose_weights_begin_again,
        "2752 of 4800 elements differ (57.3 %)",
        ["weights of another place: weights are those of the first 128 columns again; reproduces every bit"],
        [],
    ),
    "o.npy --attention --q q.npy --k k.npy --v v.npy --causal": (
        attention_with_a_mask_from_the_first_key,
        "1022 of 1024 elements differ (99.8 %)",
        ["another mask: the first row sees one key, each later row one more; reproduces every bit"],
        [],
    ),
}


@pytest.mark.parametrize("command", EXAMPLES)
def test_the_planted_cause_is_named_alone(command, refsim, tmp_path, monkeypatch):
    make, differ, causes, further = EXAMPLES[command]
    monkeypatch.chdir(tmp_path)
    make(np.random.default_rng(0))
    run = refsim("explain-diff", *command.split())
    said = run.out.splitlines()
    assert (run.code, said[0]) == (1, f"explained: {differ}")
    assert [line.split("  ", 1)[1] for line in said if line.startswith("cause  ")] == causes
    assert [text for text in further if text not in run.out] == []


def test_one_output_and_its_operands_in_python(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    slow_accumulation(np.random.default_rng(0))
    a, b = (refsim.files.load(name).codes for name in ("a.npy", "b.npy"))
    ada = refsim.numerics.mma(a, b, unit="mma.sync", target="sm_89")
    found = explain_diff(ada, operands=ProductOperands(a=a, b=b, a_format="e4m3", b_format="e4m3"))
    (named,) = map(str, found.named)
    assert named == "accumulator width and chip: sm_89 mma.sync K = 32 to f32: 16 products at once, 13 bits"
