"""The order of a kernel that declares only `computes=`: its operands are replaced in a test case."""

from contextlib import nullcontext
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import strategies as st

from refsim import oracles
from refsim.bringup.order import fingerprint, of_kernel
from refsim.conversions import encode
from refsim.errors import RefsimError
from refsim.testing import Kernel, kinds

TARGET = "sm_90a"


@dataclass(frozen=True)
class Case:
    """Operands of a product, drawn from their shapes; B is what a method returns."""

    m: int
    n: int
    k: int

    @property
    def a(self):
        return encode(np.random.default_rng(self.m).normal(0, 1, (self.m, self.k)), "e4m3")

    def b(self):
        return encode(np.random.default_rng(self.n).normal(0, 1, (self.n, self.k)), "e4m3")

    @property
    def scale_a(self):
        return np.full((self.m, -(-self.k // 128)), 3, np.float32)

    @property
    def scale_b(self):
        return np.full((1, -(-self.k // 128)), 5, np.float32)


def kernel(computes, outputs, corpus, **more):
    given = {"recipe": Case, "problem": st.sampled_from(corpus), "run": print, "ptx": ".version 8.0", "corpus": corpus}
    return Kernel("k", computes=computes, outputs=outputs, **given | more)


class Standing:
    """A device on which every kernel does what `run` says."""

    is_simulated, target = False, TARGET

    def probing(self):
        return self

    def launcher(self, code):
        return nullcontext(code)


def multiplied(_, problem):
    scales = problem.scale_a, problem.scale_b
    return {"d": oracles.fp8_gemm_1d2d(problem.a, problem.b(), *scales)}


SMALL = (Case(1, 8, 128), Case(2, 8, 128))


def test_the_order_of_a_kernel_follows_from_computes_alone():
    asked = kernel(kinds.scaled_product(), {"d": "bf16"}, run=multiplied, corpus=SMALL)
    assert not asked.orderless
    subject = of_kernel(asked, Standing())
    assert (subject.name, subject.n, subject.k, subject.rows) == ("k d", 8, 128, (1, 2))
    found = fingerprint(subject, seeds=(0,))
    assert found.explains
    assert "32 products at once" in " ".join(found.orders[0].lines)
    with pytest.raises(RefsimError, match="no test case of kernel k has M = 5"):
        fingerprint(of_kernel(asked, Standing(), rows=(1, 5)), seeds=(0,))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            {"run": lambda _, problem: {"d": np.zeros((problem.m, problem.n), np.uint16)}},
            "the kernel writes other elements",
        ),
        ({"computes": kinds.scaled_product(lambda problem: problem.a)}, "a of kernel k has no name"),
        ({"computes": kinds.scaled_product(a_scale=2.0)}, "a_scale of kernel k has no name"),
        ({"computes": kinds.scaled_product(), "corpus": (Case(1, 8, 1),)}, "K from 2"),
    ],
)
def test_a_kernel_whose_operands_cannot_be_replaced_has_no_order(change, says):
    given = {
        "computes": kinds.scaled_product(),
        "outputs": {"d": "bf16"},
        "run": multiplied,
        "corpus": (Case(4, 8, 256),),
    }
    with pytest.raises(RefsimError, match=says) as caught:
        of_kernel(kernel(**given | change), Standing())
    assert caught.value.code == "no-order"
