"""A mistake in refsim's own quantizers and row functions fails a kernel that agrees with them, without a declaration."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import strategies as st

import refsim
from refsim import formats, oracles, scaling
from refsim.cli.answers.verdicts import definitions
from refsim.computations import norms, row_sums, special
from refsim.conversions import coding, encode, rounding
from refsim.kernels import Kernel
from refsim.oracle_calls import HEARER
from refsim.oracles import fp8_quantize
from refsim.scaling import block_pass, nvfp4_recipes, quantizing
from refsim.testing import Verdict, run_campaign
from refsim.testing.samples import LONGEST_ROW, MOST_SAMPLES, Sample, take_samples

ROWS, COLUMNS = 16, 64
Arrays = Sequence[np.ndarray]


@dataclass(frozen=True)
class Numbers:
    """Whole numbers, which make ties of small formats."""

    seed: int = 0

    def x(self) -> np.ndarray:
        return np.random.default_rng(self.seed).integers(-24, 25, (ROWS, COLUMNS)).astype(np.float32)


def blocks(format: str, x: np.ndarray, **named: Any) -> Arrays:
    made = refsim.quantize(x, format, **named)
    return made.codes, made.scales


def groups(x: np.ndarray, **named: Any) -> Arrays:
    made = scaling.quantize(x, group=(2, 32), **named)
    return made.codes, made.scales


def tensor(x: np.ndarray) -> Arrays:
    q, scale = fp8_quantize.quantize(x)
    return q, np.array([scale])


def numbers(x: np.ndarray) -> Arrays:
    return (fp8_quantize.dequantize(x.astype(np.uint8), np.float32(0.3), "e4m3"),)


OF: dict[str, tuple[str, Callable[[np.ndarray], Arrays]]] = {
    "mxfp8": ("block quantizer", partial(blocks, "mxfp8")),
    "mxfp4": ("block quantizer", partial(blocks, "mxfp4", recipe="even")),
    "squares": ("block quantizer", partial(blocks, "nvfp4", block=(16, 16), recipe="te_cpp_2d")),
    "nvfp4": ("block quantizer", partial(blocks, "nvfp4", tensor_scale=2.0)),
    "groups": ("group quantizer", groups),
    "powers": ("group quantizer", partial(groups, scale="e8m0", quotient="divide")),
    "amax": ("largest magnitude", lambda x: (np.array([fp8_quantize.amax(x)]),)),
    "tensor": ("FP8 quantizer", tensor),
    "numbers": ("FP8 dequantizer", numbers),
    "softmax": ("softmax", lambda x: (oracles.softmax(x, 0.01),)),
    "rms_norm": ("RMSNorm", lambda x: (oracles.rms_norm(x, x[0], gate=x),)),
}


def kernel(function: Callable[[np.ndarray], Arrays]) -> Kernel:
    """A kernel that writes what the function returns, and has it for an oracle."""

    def run(launcher: Any, problem: Numbers) -> dict[str, np.ndarray]:
        x = launcher.upload(problem.x(), name="x")
        arrays = function(problem.x())
        y = [launcher.output(each.size, each.dtype, name=f"y{at}") for at, each in enumerate(arrays)]
        launcher.launch("same", 1, 1, [x, *y])
        return {f"y{at}": launcher.read(each).reshape(arrays[at].shape) for at, each in enumerate(y)}

    def oracle(problem: Numbers) -> dict[str, np.ndarray]:
        return {f"y{at}": each for at, each in enumerate(function(problem.x()))}

    outputs = {f"y{at}": "" for at in range(len(function(Numbers().x())))}
    corpus = tuple(Numbers(seed) for seed in range(8))
    return Kernel("same", oracle, st.builds(Numbers), run, outputs, Numbers, corpus, source="// FakeDevice")


def verdict_of(function: Callable[[np.ndarray], Arrays], fake_device: Callable[..., Any]) -> Verdict:
    def same(launcher: Any, x: Any, *y: Any) -> None:
        values = launcher.view(x).reshape(ROWS, COLUMNS)
        for buffer, array in zip(y, function(values), strict=True):
            launcher.view(buffer)[:] = array.reshape(-1)

    device = fake_device()
    device.entries["same"] = same
    return run_campaign(kernel(function), device, cases=0, suspect_seconds=0)


@pytest.mark.parametrize("name", OF)
def test_an_oracle_that_calls_refsims_own_has_a_second_definition(name, fake_device) -> None:
    judge, function = OF[name]
    verdict = verdict_of(function, fake_device)
    assert (verdict.status, verdict.recomputed.differing) == ("pass", 0)
    assert judge in verdict.recomputed.judges
    assert verdict.recomputed.outputs >= 8
    assert f"{judge}), 0 differ" in str(verdict)
    assert f"computed again ({', '.join(verdict.recomputed.judges)}), 0 differ" in definitions([verdict])


def up(right: Callable[..., Any], *given: Any, **named: Any) -> Any:
    """One place too much, in codes as in the patterns of numbers."""
    made = np.asarray(right(*given, **named))
    return (made.view(f"u{made.itemsize}") + 1).astype(f"u{made.itemsize}").view(made.dtype)


def ties_up(right: Callable[..., Any], rest: Any, half: Any, *others: Any) -> Any:
    return right(rest, half, *others) | (rest == half)


def both_up(right: Callable[..., Any], *given: Any) -> Any:
    return tuple(up(lambda each=each: each) for each in right(*given))


MISTAKES = [
    ("mxfp8", block_pass, "mx_scale_codes", up),
    ("mxfp4", block_pass, "mx_scale_codes", up),
    ("mxfp4", rounding, "_rounds_away", ties_up),
    ("squares", nvfp4_recipes, "nvfp4_scale_codes", up),
    ("nvfp4", nvfp4_recipes, "nvfp4_scale_codes", up),
    ("nvfp4", rounding, "_rounds_away", ties_up),
    ("groups", quantizing, "largest_of_groups", up),
    ("groups", quantizing, "convert", up),
    ("powers", quantizing, "scales_of", both_up),
    ("amax", fp8_quantize, "wide_values", up),
    ("tensor", fp8_quantize, "_scale", up),
    ("tensor", fp8_quantize, "convert", up),
    ("numbers", fp8_quantize, "round_bits", up),
    ("softmax", special, "approximate", up),
    ("softmax", row_sums, "_met", up),
    ("rms_norm", row_sums, "_met", up),
    ("rms_norm", norms, "silu_of", up),
]


@pytest.mark.parametrize(
    ("name", "module", "step", "mistake"), MISTAKES, ids=lambda each: getattr(each, "__name__", each).rpartition(".")[2]
)
def test_a_step_that_oracle_and_kernel_both_get_wrong_fails(
    name, module, step, mistake, fake_device, monkeypatch
) -> None:
    monkeypatch.setattr(module, step, partial(mistake, getattr(module, step)))
    coding.code_table.cache_clear()
    verdict = verdict_of(OF[name][1], fake_device)
    coding.code_table.cache_clear()
    assert (verdict.status, verdict.differing) == ("fail", 0)
    assert verdict.recomputed.differing > 0
    assert "[definition-differs]" in verdict.finding
    assert f"of the {OF[name][0]} in Numbers(" in verdict.finding


def sampled(function: Callable[[], Any]) -> list[Sample]:
    """The samples of the calls that a function makes."""
    samples: list[Sample] = []
    token = HEARER.set(partial(take_samples, samples))
    try:
        function()
    finally:
        HEARER.reset(token)
    return samples


def judged(samples: list[Sample]) -> int:
    """How many codes are compared; all of them are right."""
    pairs = [(got, want) for _, codes, again in samples for got, want in zip(codes, codes_of(again), strict=False)]
    assert all(want in (got, -1) for got, want in pairs)
    return sum(want != -1 for _, want in pairs)


def codes_of(again: Callable[[], Any]) -> list[int]:
    return [int(code) for part in again() for code in np.ravel(part)]


@pytest.mark.parametrize("recipe", scaling.RECIPES, ids=lambda each: f"{each}-{each.formats[0]}")
@pytest.mark.parametrize("kind", ["bf16", "f16", "f32"])
def test_recipes_are_right_or_left_out(recipe, kind) -> None:
    random, count = np.random.default_rng(5), 0
    for format in recipe.formats:
        for power in (-6, 0, 6):
            codes = encode(random.standard_normal((4, 64)) * 2.0**power, kind)
            special = [-0.0] if format == "nvfp4" else [np.nan, np.inf, -0.0]  # whose tensor has a scale
            codes.ravel()[random.integers(0, 256, len(special))] = encode(special, kind)
            count += judged(
                sampled(lambda c=codes, f=format: refsim.quantize(c, f, recipe=str(recipe), input_format=kind))
            )
    other_ties = [("deepgemm", "mxfp4"), ("modelopt", "mxfp4"), ("compressed_tensors", "mxfp8")]
    has_none = str(recipe).startswith(("microxcaling", "flashinfer")) or str(recipe) in (
        "vllm",
        "vllm_emulation",
        "torchao_single",
    )
    assert (count == 0) == (has_none or (str(recipe), recipe.formats[0]) in other_ties)


def test_what_has_no_second_definition_is_left_out() -> None:
    x = np.random.default_rng(6).standard_normal((2, 64)).astype(np.float32)
    bits = np.random.default_rng(7).integers(0, 256, x.shape, np.uint8)
    own = replace(scaling.recipe_named("floor", "mxfp8"), direction="up")
    long = np.zeros((1, LONGEST_ROW + 1), np.float32)
    assert judged(sampled(lambda: refsim.quantize(x, "mxfp8", random=bits))) == 0
    assert judged(sampled(lambda: refsim.quantize(x, "mxfp8", recipe=own))) == 0
    assert judged(sampled(lambda: refsim.quantize(np.zeros((1, 32), np.float32), "mxfp8"))) == 0
    assert judged(sampled(lambda: oracles.softmax(long))) == 0
    assert judged(sampled(lambda: oracles.softmax(x))) == 128
    assert sampled(lambda: refsim.quantize(np.zeros((0, 32), np.float32), "mxfp8")) == []
    assert len(sampled(lambda: [oracles.softmax(x) for _ in range(99)])) == MOST_SAMPLES


def test_arrays_of_every_kind_are_read() -> None:
    """Lists of codes, types of ml_dtypes, vectors, stacks of matrices and empty arrays."""
    x = np.random.default_rng(8).standard_normal((2, 3, 64)).astype(ml_dtypes.bfloat16)
    patterns = x.view(np.uint16).tolist()
    of_empty = sampled(lambda: fp8_quantize.quantize(np.zeros(0, np.float32)))
    assert {name: codes for name, codes, _ in of_empty} == {"largest magnitude": [0], "FP8 quantizer": [0x2720D7C5]}
    assert judged(of_empty) == 4
    for function in (
        lambda: refsim.quantize(x, "nvfp4"),
        lambda: refsim.quantize(x, "nvfp4", tensor_scale=np.float32(3)),
        lambda: refsim.quantize(x[0, 0], "mxfp4"),
        lambda: refsim.quantize(x.astype(">f4"), "mxfp4"),
        lambda: refsim.quantize(patterns, "mxfp8", input_format="bf16"),
        lambda: scaling.quantize(x, dtype="ml_dtypes", nan="ignored"),
        lambda: scaling.quantize(patterns, "bf16", to="e5m2", scale="f32_power"),
        lambda: fp8_quantize.quantize(patterns, "bf16", amax_bits=0x40000000),
        lambda: fp8_quantize.quantize(x, eps=np.float64(0.1), amax_bits=fp8_quantize.amax(x)),
        lambda: fp8_quantize.dequantize(x.view(np.uint8), np.float64(0.5), "e5m2", to=formats.F16),
        lambda: fp8_quantize.dequantize(np.uint8(0x7E).astype(ml_dtypes.float8_e4m3fn), 0.5, dtype="ml_dtypes"),
        lambda: oracles.softmax(x[0].view(np.uint16)),
        lambda: oracles.rms_norm(x[0], x[0, 0], dtype="ml_dtypes"),
    ):
        assert judged(sampled(function)) > 8


def test_the_largest_number_and_a_nan_are_among_the_samples() -> None:
    x = np.ones((1, 4096), np.float32)
    x[0, 7], x[0, 99] = np.nan, 1000
    for function in (
        lambda: fp8_quantize.quantize(x),
        lambda: scaling.quantize(x, group=(1, 4096)),
        lambda: scaling.quantize(x, group=(1, 4096), nan="ignored"),
    ):
        assert judged(sampled(function)) > 30


def test_a_result_that_the_caller_changes_was_sampled_before() -> None:
    def changed() -> None:
        x = np.ones((1, 32), np.float32)
        made = refsim.quantize(x, "mxfp8")
        x[:], made.codes[:] = 2, 0

    assert judged(sampled(changed)) == 66
