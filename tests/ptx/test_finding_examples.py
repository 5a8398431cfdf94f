"""The example of each finding is one: launched with the wrong line it has the code, with the mended line nothing is said."""

from functools import cache

import numpy as np
import pytest

from refsim import ptx
from refsim.device.compile import compile_ptx
from refsim.device.toolchain import find_toolchain
from refsim.errors import RefsimError
from refsim.ptx.findings.examples import EXAMPLES, MENDED, WRONG
from refsim.ptx.findings.table import CHECKS, STOPS

LAUNCHED = [code for code, row in EXAMPLES.items() if row.block]
WORDS = 256
TARGET = "sm_90a"


@cache
def program(folder: str) -> ptx.Program:
    """Every example twice, wrong and mended, compiled as one file."""
    texts = (
        EXAMPLES[code].text(mark).replace("example(", f"{name_of(code, mark)}(")
        for code in LAUNCHED
        for mark in (WRONG, MENDED)
    )
    file = f"{folder}/examples.cu"
    with open(file, "w", encoding="utf-8") as opened:
        opened.write("".join(f'extern "C" {text}\n' for text in texts))
    return ptx.load(compile_ptx(file, TARGET).text)


def name_of(code: str, mark: str) -> str:
    return f"{code.replace('-', '_')}_{mark.removeprefix('// ')}"


def said_of(code: str, mark: str, folder: str) -> set[str]:
    """Codes of the launch: what stopped it, or its warnings and notes."""
    checks = ptx.Checks(banks=code == "bank-conflicts")
    out = np.zeros(WORDS, np.uint32)
    try:
        trace = program(folder).launch(
            name_of(code, mark), (1,), (EXAMPLES[code].block,), [out], checks=checks, policy="lazy"
        )
    except RefsimError as problem:
        return {problem.code}
    banks = {"bank-conflicts" for use in trace.banks or () if use.worst}
    return {finding.code for finding in (*trace.warnings, *trace.notes)} | banks


def test_every_check_has_an_example_with_both_lines() -> None:
    assert list(EXAMPLES) == [row.name for row in (*CHECKS, *STOPS)]
    assert [code for code, row in EXAMPLES.items() if row.text(WRONG) == row.text(MENDED)] == []
    assert len(LAUNCHED) > 15


@pytest.mark.skipif(find_toolchain() is None, reason="NVRTC is not installed: pip install 'refsim[sim]'")
@pytest.mark.parametrize("code", LAUNCHED)
def test_the_wrong_line_is_found_and_the_mended_one_is_not(code: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = str(tmp_path_factory.getbasetemp())
    assert code in said_of(code, WRONG, folder)
    assert said_of(code, MENDED, folder) == set()
