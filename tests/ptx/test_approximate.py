"""Instructions of the special-function unit: the chip's bits on sm_90, the same bits marked inexact elsewhere."""

import numpy as np
import pytest

from refsim import ptx
from refsim.silicon.scalar_probe import ScalarForm, kind_bits, probe_module

ONE = {"rcp": 0x3F0A54EA, "rsqrt": 0x3F3C2EE6, "sqrt": 0x3FAE20D1, "ex2": 0x4066D1EA, "lg2": 0x3F6354C1}
X = 0x3FECE141
NARROW = {  # of 0.55 in f16, 0x3866, in bf16 0x3f0d, and of another number beside it
    "ex2.approx.f16": (0x3866, 0x3DDB),
    "ex2.approx.f16x2": (0xCD003866, 0x00103DDB),
    "ex2.approx.ftz.bf16": (0x3F0D, 0x3FBB),
    "ex2.approx.ftz.bf16x2": (0xC2FE3F0D, 0x00003FBB),
}
DOUBLE = {  # of 3 and one place more, whose lower word only rsqrt without .ftz reads
    "rcp.approx.ftz.f64": (0x4008000000000001, 0x3FD5555500000000),
    "rsqrt.approx.ftz.f64": (0x4008000000000001, 0x3FE279A700000000),
    "rsqrt.approx.f64": (0x4008000000000001, 0x3FE279A74590331C),
}


def launched(name: str, body: str, operands: int, target: str) -> tuple[int, bool]:
    """The result of X, or of 1 / X, and whether no bits were left open."""
    return ran(ScalarForm(name, ("f32",) * operands, 32, body), [0x3F800000, X] if operands == 2 else [X], target)


def ran(form: ScalarForm, words: list[int], target: str) -> tuple[int, bool]:
    """The result of these operands in every lane, and whether no bits were left open."""
    text = probe_module([form]).replace("sm_90a", target)
    columns = [np.full(32, word, f"u{form.result // 8}") for word in words]
    found = np.zeros(32, f"u{form.result // 8}")
    trace = ptx.load(text).launch("form_0", (1,), (32,), [*columns, found, np.uint32(32)])
    assert len(set(found.tolist())) == 1
    return int(found[0]), trace.is_exact


@pytest.mark.parametrize("target", ["sm_90", "sm_90a", "sm_80", "sm_100a"])
@pytest.mark.parametrize("name", ONE)
def test_functions(name: str, target: str) -> None:
    for ftz in ("", ".ftz"):
        found = launched(name, f"{name}.approx{ftz}.f32 %d, %a;", 1, target)
        assert found == (ONE[name], target.startswith("sm_90"))


@pytest.mark.parametrize("opcode", ["div.approx", "div.full", "div.approx.ftz", "div.full.ftz"])
def test_quotients_are_products_with_the_reciprocal(opcode: str) -> None:
    for target in ("sm_90a", "sm_89"):
        found = launched(opcode, f"{opcode}.f32 %d, %a, %b;", 2, target)
        assert found == (ONE["rcp"], target == "sm_90a")


@pytest.mark.parametrize("target", ["sm_90", "sm_90a", "sm_100a"])
@pytest.mark.parametrize("opcode", [*NARROW, *DOUBLE])
def test_functions_of_other_widths(opcode: str, target: str) -> None:
    operand, result = (NARROW | DOUBLE)[opcode]
    kind = opcode.rpartition(".")[2]
    form = ScalarForm(opcode, (kind,), kind_bits(kind), f"{opcode} %d, %a;")
    assert ran(form, [operand], target) == (result, target.startswith("sm_90"))


def test_functions_that_are_not_recorded_stay_open() -> None:
    assert launched("sin", "sin.approx.f32 %d, %a;", 1, "sm_90a")[1] is False
