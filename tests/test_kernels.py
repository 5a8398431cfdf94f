"""A declaration that cannot be meant is refused where it is made."""

import dataclasses

import pytest

from refsim.errors import RefsimError
from refsim.kernels import Buffer, Kernel, Promise
from refsim.testing.recipes import Tensor

GOOD = {
    "name": "copy",
    "oracle": lambda problem: {"y": problem.codes()},
    "problem": None,
    "run": lambda launcher, problem: {"y": problem.codes()},
    "outputs": {"y": "bf16"},
    "recipe": Tensor,
    "call": print,
}


def test_declaration_keeps_what_it_was_given():
    kernel = Kernel(**GOOD, corpus=(Tensor(1, "bf16"),))
    assert kernel.promise is Promise.BITWISE
    assert kernel.output_formats(Tensor(1, "bf16")) == {"y": "bf16"}
    with pytest.raises(dataclasses.FrozenInstanceError):
        kernel.name = "other"


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"name": ""}, "bad-kernel"),
        ({"name": "../../etc"}, "bad-kernel"),
        ({"oracle": None}, "wrong-type"),
        ({"run": "launch"}, "wrong-type"),
        ({"problem": "k.cu"}, "bad-recipe"),
        ({"problem": Tensor}, "bad-recipe"),
        ({"suspects": {"sign lost": {"y": 0}}}, "wrong-type"),
        ({"outputs": {}}, "bad-kernel"),
        ({"outputs": {"y": "bf17"}}, "unknown-format"),
        ({"outputs": {"y": "s4"}}, "bad-kernel"),
        ({"promise": "bitwise"}, "bad-promise"),
        ({"recipe": Tensor(1, "bf16")}, "bad-recipe"),
        ({"corpus": (each for each in ())}, "bad-kernel"),
        ({"corpus": (Buffer("x", 0, 0, None),)}, "bad-kernel"),
    ],
)
def test_wrong_declaration_is_refused(change, code):
    with pytest.raises(RefsimError) as caught:
        Kernel(**{**GOOD, **change})
    assert caught.value.code == code


def test_a_declaration_without_code_is_refused():
    with pytest.raises(RefsimError, match="no file that could be compiled") as caught:
        Kernel(**{**GOOD, "call": None})
    assert (caught.value.code, caught.value.where, caught.value.exit_code) == ("no-kernel-file", "kernel copy", 2)
    assert caught.value.help == "Kernel(file=...), or source=, ptx=, call="


def test_a_declaration_names_the_arguments_that_it_lacks():
    with pytest.raises(RefsimError, match="a Kernel needs run and outputs and recipe") as caught:
        Kernel("k", print, problem=None, file="k.cu")
    assert "name the arguments: Kernel(name=" in caught.value.help


def test_outputs_may_depend_on_the_problem():
    kernel = Kernel(**{**GOOD, "outputs": lambda problem: {"y": problem.format}})
    assert kernel.output_formats(Tensor(1, "f16")) == {"y": "f16"}
    with pytest.raises(RefsimError, match="bad-kernel"):
        Kernel(**{**GOOD, "outputs": lambda problem: {}}).output_formats(Tensor(1, "f16"))


def test_oracle_and_suspects_take_the_target_where_it_matters():
    kernel, problem = Kernel(**GOOD), Tensor(1, "f16")
    assert kernel.expected(problem, "sm_80")["y"].tolist() == [0]
    assert kernel.asked(problem, "sm_80") == (problem,)
    kernel = Kernel(**{**GOOD, "oracle": lambda problem, target: {"y": target}, "per_target": True})
    assert kernel.expected(problem, "sm_80") == {"y": "sm_80"}
    assert kernel.asked(problem, "sm_80") == (problem, "sm_80")


@pytest.mark.parametrize(
    ("make", "code"),
    [
        (lambda: Promise(within_ulps=-1), "bad-bound"),
        (lambda: Promise(within_ulps="a"), "bad-bound"),
        (lambda: Promise(nan=5), "bad-promise"),
        (lambda: Kernel(**{**GOOD, "suspects": None}), "bad-kernel"),
        (lambda: Kernel(**{**GOOD, "suspects": [1]}), "bad-kernel"),
    ],
)
def test_parts_of_another_type_are_refused_where_they_stand(make, code):
    with pytest.raises(RefsimError) as caught:
        make()
    assert (caught.value.code, caught.value.exit_code) == (code, 2)


def test_bound_needs_a_derivation():
    promise = Promise.WITHIN(2, because="div.full.f32 has 2 ulp")
    assert (promise.within_ulps, promise.nan) == (2, "any-payload")
    assert str(promise) == "within 2 ulp: div.full.f32 has 2 ulp"
    with pytest.raises(RefsimError, match="bad-promise"):
        Promise.WITHIN(2, because=" ")
    for bound in (0, -1, 1.5, True):
        with pytest.raises(RefsimError, match="bad-bound"):
            Promise.WITHIN(bound, because="measured")


def test_the_error_of_an_unknown_format_names_the_kernel():
    with pytest.raises(RefsimError, match="no format is called 'f99'") as caught:
        Kernel(**{**GOOD, "outputs": {"n": "", "y": "f99"}})
    assert caught.value.where == f"outputs of kernel {GOOD['name']}"


@pytest.mark.parametrize("name", ["s4", "b1"])
def test_the_error_of_an_output_without_codes_says_how_it_is_declared(name):
    with pytest.raises(RefsimError, match=f"{name} is not a format of codes") as caught:
        Kernel(**{**GOOD, "outputs": {"y": name}})
    assert caught.value.help == 'outputs={"y": "s32"}, "u8", "f64", or "" for integers by their dtype'


@pytest.mark.parametrize("name", ["s8", "u8", "s16", "u16", "s32", "u32", "s64", "u64", "f64"])
def test_an_output_may_be_integers_or_float64(name):
    assert Kernel(**{**GOOD, "outputs": {"y": name}}).output_formats(None) == {"y": name}
