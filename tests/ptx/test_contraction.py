"""What ptxas may fuse is reported: a bare product that feeds a bare sum; a rounding modifier on either prevents it."""

import re
from pathlib import Path

import numpy as np
import pytest

from refsim import ptx
from refsim.ptx.lowering.liveness import Contraction, contractions
from refsim.ptx.text.inline import inline

KERNELS = sorted((Path(__file__).parents[2] / "gpu" / "ptx").glob("*.ptx"))
REGISTERS = {"f32": "b32", "f64": "b64", "f16": "b16", "bf16": "b16", "f16x2": "b32", "bf16x2": "b32"}
PRODUCT = re.compile(r"\bmul(\.ftz)?(\.sat)?\.(f32|f64|f16|f16x2|bf16|bf16x2)(?![\w.])")
HEAD = ".version 9.0\n.target sm_90a\n.address_size 64\n"


def pair(product: str, total: str, type: str, *, swapped: bool = False) -> ptx.Program:
    operands = "%c, %d" if swapped else "%d, %c"
    body = f"{product} %d, %a, %b; {total} %e, {operands};"
    return ptx.load(f"{HEAD}.entry k()\n{{ .reg .{REGISTERS[type]} %a, %b, %c, %d, %e; {body} ret; }}\n")


def found(program: ptx.Program) -> list[str]:
    return [str(entry) for entry in contractions(program.module.functions["k"])]


@pytest.mark.parametrize("type", sorted(REGISTERS))
@pytest.mark.parametrize("total", ["add", "sub"])
@pytest.mark.parametrize("swapped", [False, True])
def test_a_bare_product_that_feeds_a_bare_sum_is_reported(type: str, total: str, swapped: bool) -> None:
    program = pair(f"mul.{type}", f"{total}.{type}", type, swapped=swapped)
    (report,) = found(program)
    assert PRODUCT.search(program.text)
    assert f"mul.{type} at PTX line 5 feeds {total}.{type} at PTX line 5" in report
    assert "write .rn" in report


@pytest.mark.parametrize("type", sorted(REGISTERS))
def test_a_rounding_modifier_on_either_prevents_it(type: str) -> None:
    assert found(pair(f"mul.rn.{type}", f"add.{type}", type)) == []
    assert found(pair(f"mul.{type}", f"add.rn.{type}", type)) == []
    assert found(pair(f"mul.rn.{type}", f"add.rn.{type}", type)) == []


def test_other_modes_and_other_types_prevent_it() -> None:
    assert found(pair("mul.rz.f32", "add.f32", "f32")) == []
    assert found(pair("mul.f32", "add.rp.f32", "f32")) == []
    assert found(pair("mul.f32", "add.s32", "f32")) == []
    assert found(pair("mul.lo.s32", "add.s32", "f32")) == []


@pytest.mark.parametrize("flags", ["", ".ftz", ".sat", ".ftz.sat"])
def test_flushing_and_saturation_do_not_prevent_it(flags: str) -> None:
    assert len(found(pair(f"mul{flags.removesuffix('.sat')}.f32", f"add{flags}.f32", "f32"))) == 1
    assert PRODUCT.search(f"mul{flags}.f32 %a, %b, %c;")


def test_a_launch_with_a_contraction_is_not_exact() -> None:
    program = pair("mul.f32", "add.f32", "f32")
    trace = program.launch("k", (1,), (32,), [])
    assert len(trace.contractions) == 1
    assert not trace.is_exact
    assert pair("mul.rn.f32", "add.f32", "f32").launch("k", (1,), (32,), []).is_exact


def test_two_roundings_and_one_differ() -> None:
    """What is at stake: (1 + 2^-23) * 1.5 - 1.5 has one bit more when it is fused."""
    one, half = np.float32(1 + 2.0**-23), np.float32(1.5)
    apart = np.float32(np.float32(one * half) - half)
    fused = np.float32(np.float64(one) * np.float64(half) - np.float64(half))
    assert apart == np.float32(2.0**-22)
    assert fused == np.float32(1.5 * 2.0**-23)


@pytest.mark.parametrize("kernel", [pytest.param(path, id=path.name) for path in KERNELS])
def test_the_project_s_own_kernels_leave_nothing_to_ptxas(kernel: Path) -> None:
    """Only a text with a bare product can leave one, and need be read."""
    text = kernel.read_text("utf-8")
    assert ".entry" in text
    left: list[Contraction] = []
    if PRODUCT.search(text):
        program = ptx.load(kernel)
        for name in program.entries:
            left += contractions(inline(program.module, program.module.functions[name]))
    assert left == []
