"""The example of each finding: launched with the wrong line it reports the code, with the right line it reports nothing."""

from functools import cache

import numpy as np
import pytest

from refsim import layouts, ptx
from refsim.device.compile import compile_ptx
from refsim.device.schedules import SeededPolicy, outcomes, schedules_of
from refsim.device.toolchain import find_toolchain
from refsim.errors import RefsimError
from refsim.ptx.findings.examples import EXAMPLES, RIGHT, WRONG
from refsim.ptx.findings.table import CHECKS, STOPS
from refsim.ptx.memory.tensor_map import encoded
from tests.ptx.example_surroundings import AROUND, HELPERS, Around

WORDS = 256
MARKS = (WRONG, RIGHT)


def around(code: str) -> Around:
    return AROUND.get(code, Around(block=EXAMPLES[code].block))


def name_of(code: str, mark: str) -> str:
    return f"{code.replace('-', '_')}_{mark.removeprefix('// ')}"


def kernel_text(code: str, mark: str) -> str:
    """The example as a kernel of its own name, and the one that is launched before it, where there is one."""
    row, there, name = EXAMPLES[code], around(code), name_of(code, mark)
    if row.block:
        return f'extern "C" {row.text(mark).replace("example(", f"{name}(")}\n'
    head = f'extern "C" __global__ void {name}(unsigned* out, unsigned const* input) {{'
    body = f"{head}\n{there.before}\n{row.text(mark)}{there.after}\n}}\n"
    return body + (f"{head.replace(name, f'{name}_before')}\n{there.first}\n}}\n" if there.first else "")


@cache
def program(folder: str, target: str) -> ptx.Program:
    """Every example of a target twice, wrong and right, compiled as one file."""
    codes = [code for code in EXAMPLES if around(code).target == target]
    file = f"{folder}/examples_{target}.cu"
    with open(file, "w", encoding="utf-8") as opened:
        opened.write(HELPERS + "".join(kernel_text(code, mark) for code in codes for mark in MARKS))
    return ptx.load(compile_ptx(file, target).text)


def said_of(code: str, mark: str, folder: str) -> set[str]:
    """Codes of launches in several orders: what stopped one, warnings and notes."""
    there, name = around(code), name_of(code, mark)
    loaded = program(folder, there.target)
    checks = ptx.Checks(banks=code == "bank-conflicts", seconds=there.seconds)
    said: set[str] = set()

    def run(order: SeededPolicy) -> tuple[ptx.Trace, ptx.GlobalMemory]:
        memory = ptx.GlobalMemory()
        taken = memory.allocate(4 * WORDS, "input", initial=bytes(4 * WORDS), writable=False)
        out = memory.allocate(4 * WORDS, "out", initial=initial(there, taken))
        args = [np.uint64(out), np.uint64(taken)][: len(loaded.entries[name])]
        how = {"memory": memory, "policy": order.policy, "seed": order.seed, "checks": checks}
        if there.first:
            loaded.launch(f"{name}_before", 1, there.block, args, **how)
        return loaded.launch(name, 1, there.block, args, programmatic=bool(there.first), **how), memory

    try:
        for found in outcomes(run, name, schedules_of(loaded, name)):
            said |= {found.error.code} if found.error else set()
            trace = found.trace
            said |= {each.code for each in (*trace.warnings, *trace.notes)} if trace else set()
            said |= {"bank-conflicts" for use in trace.banks if use.worst} if trace else set()
    except RefsimError as problem:
        said.add(problem.code)
    return said


def initial(there: Around, tensor: int) -> bytes:
    shape = {"strides": (128,), "address": tensor}
    made = encoded(layouts.tensor_map("uint32", (32, 8), (32, 4), **shape)) if there.map_first else b""
    return made.ljust(4 * WORDS, b"\0")


def test_every_check_has_an_example_with_both_lines() -> None:
    assert list(EXAMPLES) == [row.name for row in (*CHECKS, *STOPS)]
    assert [code for code, row in EXAMPLES.items() if row.text(WRONG) == row.text(RIGHT)] == []
    assert set(AROUND) == {code for code, row in EXAMPLES.items() if not row.block}


@pytest.mark.skipif(find_toolchain() is None, reason="NVRTC is not installed: pip install 'refsim[sim]'")
@pytest.mark.parametrize("code", EXAMPLES)
def test_the_wrong_line_is_found_and_the_right_one_is_not(code: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = str(tmp_path_factory.getbasetemp())
    assert code in said_of(code, WRONG, folder)
    assert said_of(code, RIGHT, folder) == set()
