"""Instructions of the special-function unit: the chip's bits on sm_90, the same bits marked inexact elsewhere."""

import numpy as np
import pytest

from refsim import ptx
from refsim.silicon.scalar_probe import ScalarForm, probe_module

ONE = {"rcp": 0x3F0A54EA, "rsqrt": 0x3F3C2EE6, "sqrt": 0x3FAE20D1, "ex2": 0x4066D1EA, "lg2": 0x3F6354C1}
X = 0x3FECE141


def launched(name: str, body: str, operands: int, target: str) -> tuple[int, bool]:
    """The result of X, or of 1 / X, and whether no bits were left open."""
    form = ScalarForm(name, ("f32",) * operands, 32, body)
    text = probe_module([form]).replace("sm_90a", target)
    columns = [np.full(32, word, np.uint32) for word in ([0x3F800000, X] if operands == 2 else [X])]
    found = np.zeros(32, np.uint32)
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


def test_functions_that_are_not_recorded_stay_open() -> None:
    assert launched("sin", "sin.approx.f32 %d, %a;", 1, "sm_90a")[1] is False
