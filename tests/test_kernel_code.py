"""A kernel's code: one way to say it, or none; what compilers are told; what a verdict calls it."""

import functools
from dataclasses import fields
from pathlib import Path

import pytest

from refsim.errors import Kind, RefsimError
from refsim.kernel_code import KernelCode, code_of, needs_a_gpu
from refsim.kernels import Kernel
from refsim.testing.recipes import Tensor

PTX = ".version 8.0\n.target sm_80\n.address_size 64\n"


@pytest.mark.parametrize(
    "given",
    [
        {"file": Path("k.cu"), "source": "text"},
        {"ptx": PTX, "call": print},
        {"source": "  "},
        {"ptx": b"bytes"},
        {"ptx": "k.ptx"},
        {"source": "// \ud800"},
        {"file": 5},
        {"call": 7},
        {"source": "x", "options": "-DX"},
        {"source": "x", "options": (1,)},
        {"source": "x", "include": "headers"},
        {"source": "x", "include": Path("headers")},
        {"source": "x", "options": None},
        {"source": "x", "include": None},
        {"source": "x", "include": (5,)},
        {"source": "x", "entries": None},
        {"source": "x", "entries": (5,)},
        {"source": "x", "defines": [("A", 1)]},
        {"source": "x", "defines": None},
        {"source": "x", "compiler": "gcc"},
        {"ptx": PTX, "options": ("-DX",)},
        {"file": Path("k.ptx"), "defines": {"X": 1}},
        {"file": Path("k.ptx"), "include": (Path("headers"),)},
    ],
)
def test_code_that_cannot_be_meant_is_refused_where_the_kernel_is_declared(given):
    with pytest.raises(RefsimError) as caught:
        KernelCode(**given)
    assert (caught.value.code, caught.value.kind) == ("bad-kernel", Kind.USAGE)
    rest = {"oracle": print, "problem": None, "run": print, "outputs": {"y": "bf16"}, "recipe": Tensor}
    with pytest.raises(RefsimError, match="at: kernel mine"):
        Kernel("mine", **rest, **given)


def test_defines_become_flags_before_the_options():
    code = KernelCode(source="x", defines={"WIDTH": 8, "FAST": None, "ON": True, "T": "float"}, options=("-G",))
    assert code.flags == ("-DWIDTH=8", "-DFAST", "-DON=1", "-DT=float", "-G")


def test_a_label_tells_texts_apart_and_names_files_and_functions():
    assert KernelCode(file=Path("/somewhere/k.cu")).label == "k.cu"
    one, other = KernelCode(source="a").label, KernelCode(source="b").label
    assert one != other
    assert one.startswith("source ")
    assert KernelCode(ptx=PTX).label.startswith("ptx ")
    assert KernelCode(call=len).label == "call builtins.len"
    assert KernelCode(call=functools.partial(len, "x")).label == "call functools.partial"
    assert KernelCode().label == ""


def test_ptx_is_known_by_its_suffix_and_instances_by_their_arguments():
    assert KernelCode(file=Path("k.ptx")).is_ptx
    assert not KernelCode(file=Path("k.cu")).is_ptx
    assert KernelCode(source="x", entries=("k", "k<4>", "_Z1k")).instances == ("k<4>",)
    assert KernelCode(ptx="// a text of several lines\nwhose faults a reader of PTX says").is_ptx
    assert code_of(Path("k.ptx")) == KernelCode(file=Path("k.ptx"))


def test_a_kernel_without_code_runs_nowhere_and_a_call_not_on_the_simulator():
    with pytest.raises(RefsimError, match="no-kernel-file"):
        KernelCode().required()
    refused = needs_a_gpu(KernelCode(call=len))
    assert refused.kind is Kind.INCONCLUSIVE
    assert "builtins.len is a Python function" in refused.what


def test_a_kernel_has_every_field_of_its_code_with_the_same_default() -> None:
    """They stand twice, as the order of Kernel's fields is public; this holds the two together."""
    of_kernel = {each.name: each for each in fields(Kernel)}
    for each in fields(KernelCode):
        own = of_kernel[each.name]
        assert (own.type, own.default, own.default_factory) == (each.type, each.default, each.default_factory)
