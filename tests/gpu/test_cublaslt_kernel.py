"""cuBLASLt as somebody else's kernel: a plug-in of few lines, and problems for which the oracle has an answer."""

import ast
from pathlib import Path

import numpy as np
from hypothesis import given

from refsim import device
from refsim.testing import find_kernels, run_campaign, verdicts
from refsim.testing.strategies import share

FILE = Path(__file__).parents[2] / "conformance/cublaslt/kernels.py"
(KERNEL,) = find_kernels([FILE])


def test_the_library_is_called_in_under_20_lines() -> None:
    functions = {node.name: node for node in ast.parse(FILE.read_text()).body if isinstance(node, ast.FunctionDef)}
    lines = ast.unparse(functions["multiply"]).splitlines()
    assert 5 < len(lines) < 20


@share(1 / 5)
@given(problem=KERNEL.problem)
def test_the_oracle_answers_every_problem_that_is_drawn(problem) -> None:
    answer = KERNEL.oracle(problem)["d"]
    assert answer.shape == (problem.m, problem.n)
    a, b, by_row, by_block = problem.operands()
    assert np.isfinite(by_row).all()
    assert (by_block > 0).all()
    assert {len(a), len(b)} == {problem.m, problem.n}


def test_the_oracle_answers_its_corpus(refsim_profile: str) -> None:
    """The quick profile asks for every fifth problem: every size, way to scale, accumulation and output is among them."""
    asked = KERNEL.corpus[:: 5 if refsim_profile == "quick" else 1]
    for field in ("m", "scaling", "accumulation", "out"):
        assert {getattr(each, field) for each in asked} == {getattr(each, field) for each in KERNEL.corpus}
    for problem in asked:
        assert KERNEL.oracle(problem)["d"].shape == (problem.m, problem.n)


def test_on_the_simulator_it_is_unsupported() -> None:
    assert run_campaign(KERNEL, device.open("sim"), cases=2).status == verdicts.UNSUPPORTED
