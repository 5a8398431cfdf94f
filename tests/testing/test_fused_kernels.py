"""docs/fused-kernels.md: its kernels pass as declared, and mistakes planted in them are named."""

import math
import re
from dataclasses import replace

import numpy as np
import pytest

from conformance.fused_kernels.more import CASES_OF_MORE
from conformance.fused_kernels.recipes import Rows
from conformance.fused_kernels.trials import (
    CASES,
    PAGE,
    RIGHT,
    WRONG,
    asked,
    kernels,
    kernels_of_page,
    mistakes,
)
from refsim import device
from refsim.errors import RefsimError
from refsim.testing import run_campaign, steps, verdicts

NAMES = ("rms_norm_fp8", "silu_mul_fp8", "rope_kv_fp8", "add_norm_nvfp4")
LATER = "python -m conformance.fused_kernels tries the others"
FIRST = ("norm-weights-next", "silu-float32", "rope-slot-page", "nvfp4-tile-order")


def test_the_page_declares_four_kernels_each_under_15_lines():
    assert tuple(kernels_of_page()) == NAMES
    blocks = re.findall(r"^```python\n([A-Z].*?)^```", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    assert all(len(block.splitlines()) < 15 for block in blocks)


@pytest.mark.parametrize("name", NAMES)
def test_a_kernel_of_the_page_passes_bit_for_bit(name):
    kernel = replace(kernels()[name], corpus=(CASES[name], Rows(1, 128, 5), Rows(3, 256, 9)))
    verdict = run_campaign(kernel, device.open("sim"), cases=3)
    assert verdict.status == verdicts.PASS, verdict.finding


@pytest.mark.parametrize(
    "name",
    ["gelu_mul_int8", *(pytest.param(name, marks=pytest.mark.ci(LATER)) for name in CASES_OF_MORE if name[0] != "g")],
)
def test_another_kernel_passes_bit_for_bit(name):
    kernel = replace(kernels()[name], corpus=(CASES[name],))
    verdict = run_campaign(kernel, device.open("sim"), cases=3)
    assert verdict.status == verdicts.PASS, verdict.finding


def test_every_kernel_has_ten_mistakes():
    for name in kernels():
        assert sum(each.kernel == name for each in mistakes().values()) >= 10


@pytest.mark.parametrize(
    "id", [id if id in FIRST else pytest.param(id, marks=pytest.mark.ci(LATER)) for id in mistakes()]
)
def test_a_planted_mistake_is_named_and_never_wrongly(id):
    answer = asked(id)
    assert answer.verdict != WRONG, answer
    assert answer.verdict == RIGHT or id not in FIRST, answer


@pytest.mark.parametrize("name", NAMES)
def test_every_choice_has_words_a_source_and_codes_of_the_right_size(name):
    own = kernels()[name].computes(CASES[name])
    usual = own.codes(own.usual)
    assert own.together(own.apart(usual)).tobytes() == usual.tobytes()
    assert sum(cause.is_made(own.usual) for cause in own.causes()) >= len(own.stages)
    for cause in own.causes():
        assert cause.says
        assert str(cause.source)
        assert own.described(cause.of(own.usual)).startswith(own.title)


LOAD, STORE = steps.load("x"), steps.store("y")


@pytest.mark.parametrize(
    ("given", "rule"),
    [
        ((), "the first step loads"),
        ((steps.rms_norm("w"), STORE), "the first step loads"),
        ((LOAD, LOAD, STORE), "the first step loads"),
        ((LOAD, steps.rms_norm("w")), "the last step stores"),
        ((LOAD, steps.quantize("e4m3"), steps.silu(), STORE), "followed by the last store"),
        ((LOAD, steps.rounded("bf16"), STORE), "follows the step"),
        ((LOAD, STORE, STORE), "stored once"),
        ((LOAD, "store", STORE), "every argument is a step"),
    ],
)
def test_a_wrong_composition_is_refused(given, rule):
    with pytest.raises(RefsimError, match=rule) as caught:
        steps.fused(*given)
    error = caught.value
    assert (error.code, error.where) == ("bad-kernel", "fused(...)")
    assert error.help


@pytest.mark.parametrize(
    ("step", "code"),
    [
        (steps.rms_norm("v"), "unknown-name"),
        (steps.rms_norm("x"), "bad-shape"),
        (steps.rope("cos", "sin", 48), "bad-shape"),
        (steps.multiply(lambda problem: np.ones(3, np.float32)), "bad-shape"),
    ],
)
def test_operands_that_do_not_fit_are_refused(step, code):
    with pytest.raises(RefsimError) as caught:
        steps.fused(LOAD, step, STORE)(Rows(2, 128))
    assert caught.value.code == code


@pytest.mark.parametrize(
    ("step", "given", "near"),
    [
        (steps.rms_norm, {"weight": "w", "how": ["no such way"]}, "`ways` of the step lists them"),
        (steps.add, {"other": "w", "how": ["the"]}, "the operand is added"),
        (steps.gelu, {"how": "tanh is"}, "tanh is of b * (x + k * x^3)"),
    ],
)
def test_a_text_that_names_no_way_or_several_is_refused_where_the_step_is_written(step, given, near):
    with pytest.raises(RefsimError) as caught:
        step(**given)
    assert caught.value.code == "bad-kernel"
    assert near in caught.value.help


STEPS_OF_PAGE = {
    "norms": (steps.rms_norm("w"), steps.layer_norm("w", "w")),
    "layer_norm": (steps.layer_norm("w", "w"),),
    "silu": (steps.silu(), steps.silu_mul("w")),
    "softmax": (steps.softmax(),),
    "rope": (steps.rope("cos", "sin", 64),),
}


def test_the_texts_of_the_page_each_name_one_way():
    rows = re.findall(r"^\| [^|]+ \| ([^|]+) \| `\"(.+)\"` \|$", PAGE.read_text("utf-8"), re.MULTILINE)
    assert len(rows) == 6
    for names, text in rows:
        for name in re.findall(r"\w+", names):
            assert all(replace(step, how=[*step.how, text]).how for step in STEPS_OF_PAGE[name])


@pytest.mark.parametrize(
    "step", [steps.rms_norm("w"), steps.gelu(), steps.softmax(), steps.rope("cos", "sin", 128), steps.quantize("int8")]
)
def test_every_way_that_a_step_lists_is_taken(step):
    assert step.ways
    for text in step.ways:
        assert replace(step, how=text).how == text


def test_a_way_that_rounds_to_the_output_has_the_name_of_its_format_too():
    assert steps.rms_norm("w", how="x * r is rounded to bf16").how


def test_int8_codes_and_scales_are_those_of_plain_code():
    problem = Rows(3, 128)
    x, _ = steps.StepOperands(problem).values("x")
    own = steps.fused(LOAD, steps.quantize("int8", quotient="largest"), steps.store("q", scales="s"))(problem)
    outputs, top = own.apart(own.codes(own.usual)), np.abs(x).max(1, keepdims=True)
    assert (outputs["q"].view(np.int8) == np.rint(x * (np.float32(127) / top))).all()
    assert (outputs["s"].view(np.float32) == top / np.float32(127)).all()


def test_a_number_that_is_not_one_is_0_in_int8_and_nan_in_fp8():
    given = np.float32([[np.nan, 300.0, -300.0, 2.5]])
    for format, want in (("int8", [0, 127, 128, 2]), ("e4m3", [0x7F, 0x79, 0xF9, 0x42])):
        own = steps.fused(steps.load(given), steps.store("y", format))(Rows(1, 128))
        assert own.codes(own.usual).tolist() == want


def test_a_transposed_output_has_columns_as_rows_and_a_kernel_that_does_not_transpose_is_named():
    own = steps.fused(LOAD, steps.silu(), steps.quantize("nvfp4"), steps.store("q", scales="s", transposed=True))
    turned, plain = own(Rows(4, 256)), steps.fused(*own.steps[:-1], steps.store("q", scales="s"))(Rows(4, 256))
    got, want = (each.apart(each.codes(each.usual)) for each in (turned, plain))
    assert (got["s"] == want["s"].T).all()
    assert got["q"].shape == (256, 2)
    assert turned.together(got).tobytes() == turned.codes(turned.usual).tobytes() == plain.together(want).tobytes()
    written = turned.together({"q": want["q"].reshape(256, 2), "s": want["s"].reshape(16, 4)})
    (cause,) = [each for each in turned.causes() if "rows lie as rows" in each.says]
    assert (turned.codes(cause.of(turned.usual)) == written).all()


def test_a_quantizer_that_does_not_exist_is_refused():
    for given in ({"to": "e9m9"}, {"to": "e4m3", "quotient": "no"}, {"to": "e4m3", "scale": "no"}):
        with pytest.raises(RefsimError):
            steps.quantize(**given)
    with pytest.raises(RefsimError, match="no rule has scale 'e8m0'"):
        steps.fused(LOAD, steps.quantize("e4m3", scale="e8m0", quotient="divide"), STORE)(Rows(2, 128))


def test_steps_of_every_kind_have_the_values_of_plain_float32_code():
    problem = Rows(3, 128)
    x, w, other = (steps.StepOperands(problem).values(name)[0] for name in ("x", "w", "other"))
    for step, want in (
        (steps.add("other"), x + other),
        (steps.multiply(0.5), x * np.float32(0.5)),
        (steps.divide("w"), x / w),
        (steps.softmax(), np.exp(x - x.max(1, keepdims=True)) / np.exp(x - x.max(1, keepdims=True)).sum(1)[:, None]),
        (steps.silu(), x / (1 + np.exp(-x))),
        (steps.silu(how="expf of CUDA"), x / (1 + np.exp(-x))),
        (steps.gelu("tanh"), x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))),
        (steps.gelu(), x / 2 * (1 + np.vectorize(math.erf)(x / np.sqrt(2)))),
        (steps.layer_norm("w", "w", 0.0), (x - x.mean(1)[:, None]) / x.std(1)[:, None] * w + w),
    ):
        own = steps.fused(LOAD, step, steps.store("y", "f32"))(problem)
        got = own.apart(own.codes(own.usual))["y"].view(np.float32)
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
