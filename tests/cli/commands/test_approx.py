"""refsim approx: names of forms, operands from files and standard input, and what is said of the exact value."""

import json
from fractions import Fraction

import numpy as np
import pytest

from refsim import numerics
from refsim.numerics.special import SPECIAL_FORMS


def results(refsim, *arguments: str) -> list[dict]:
    run = refsim("approx", *arguments, "--as", "json")
    assert run.code == 0, run.err
    return json.loads(run.out)["results"]


@pytest.mark.parametrize(
    ("arguments", "instruction"),
    [
        (("ex2",), "ex2.approx.f32"),
        (("ex2", "--ftz"), "ex2.approx.ftz.f32"),
        (("ex2.approx.ftz",), "ex2.approx.ftz.f32"),
        (("ex2", "-t", "f16"), "ex2.approx.f16"),
        (("ex2", "-t", "bf16"), "ex2.approx.ftz.bf16"),
        (("rsqrt", "-t", "f64"), "rsqrt.approx.f64"),
        (("rsqrt", "-t", "f64", "--ftz"), "rsqrt.approx.ftz.f64"),
        (("rcp.approx.ftz.f64",), "rcp.approx.ftz.f64"),
    ],
)
def test_a_name_means_one_form(refsim, arguments, instruction):
    assert [row["instruction"] for row in results(refsim, *arguments, "0x0")] == [instruction]


@pytest.mark.parametrize("form", [form.instruction for form in SPECIAL_FORMS])
def test_every_form_can_be_looked_up(refsim, form):
    """The code is that of numerics.approx, its error a few places; of cos near zero, tanh, upper words more."""
    row = next(each for each in SPECIAL_FORMS if each.instruction == form)
    code = (1 << row.format.bits - 2) + (5 << row.format.mantissa_bits - 4)
    (found,) = results(refsim, form, *[hex(code)] * row.operands)
    dtypes = {32: (np.uint32, np.float32), 64: (np.uint64, np.float64), 16: (np.uint16, np.float16)}
    unsigned, dtype = dtypes[row.format.bits]
    operand = np.array([code], unsigned).view(unsigned if row.format.name == "bf16" else dtype)
    want = numerics.approx(form, *[operand] * row.operands).view(unsigned)[0]
    assert int(found["code"], 16) == want
    places = (
        2**32 if "ftz.f64" in form else {"cos.approx": 16, "tanh.approx": 256}.get(form[:-4].removesuffix(".ftz"), 3)
    )
    assert abs(found["error_ulp"]) < places
    assert abs(found["steps"]) < places


def test_error_and_steps_are_those_of_the_exact_value(refsim):
    """1 / 3 by rcp: the error in places of the rounded result, by fractions."""
    (found,) = results(refsim, "rcp", "0x40400000")
    value = np.array([int(found["code"], 16)], np.uint32).view(np.float32)[0]
    assert found["rounded"] == "0x3eaaaaab"
    assert found["error_ulp"] == pytest.approx(float((Fraction(float(value)) - Fraction(1, 3)) * 2**25), rel=1e-9)
    assert found["steps"] == int(found["code"], 16) - 0x3EAAAAAB
    assert found["neighbours"] == ["0x3eaaaaaa", "0x3eaaaaac"]
    around = [
        numerics.approx("rcp.approx.f32", np.array([word], np.uint32).view(np.float32))
        for word in (0x403FFFFF, 0x40400001)
    ]
    assert [found["before"], found["after"]] == [hex(each.view(np.uint32)[0]) for each in around]


def test_operands_come_from_standard_input_and_files(refsim, tmp_path):
    np.save(tmp_path / "a.npy", np.float32([6, 1]))
    np.save(tmp_path / "b.npy", np.float32([3, 2]))
    (tmp_path / "codes.txt").write_text("0x40c00000\n0x3f800000\n")
    one = ["0x3e2aaaab", "0x3f800000"]
    assert [row["code"] for row in results(refsim, "rcp", str(tmp_path / "a.npy"))] == one
    assert [row["code"] for row in results(refsim, "rcp", str(tmp_path / "codes.txt"))] == one
    quotients = results(refsim, "div.full", str(tmp_path / "a.npy"), str(tmp_path / "b.npy"))
    assert [(row["operand"], row["code"]) for row in quotients] == [
        (["0x40c00000", "0x40400000"], "0x40000000"),
        (["0x3f800000", "0x40000000"], "0x3f000000"),
    ]
    run = refsim("approx", "rcp", "-", "--as", "json", stdin=b"0x40c00000 0x3f800000")
    assert [row["code"] for row in json.loads(run.out)["results"]] == one


@pytest.mark.parametrize(
    ("word", "code"),
    [("0.5", "0x3f000000"), ("-2", "0xc0000000"), ("inf", "0x7f800000"), ("2", "0x40000000"), ("0x1p-1", "0x3f000000")],
)
def test_an_operand_may_be_a_value(refsim, word, code):
    assert results(refsim, "ex2", word) == results(refsim, "ex2", code)


def test_a_value_is_rounded_to_the_format_of_the_instruction(refsim):
    (found,) = results(refsim, "ex2", "-t", "bf16", "0.3")
    assert found["operand"] == "0x3e9a"
    assert results(refsim, "div.full", "6", "0x40400000") == results(refsim, "div.full", "0x40c00000", "3")
