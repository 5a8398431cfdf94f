"""Rows of A and columns of B that change while a product reads them: what the suite's kernels do not show."""

import re
from pathlib import Path

import numpy as np
import pytest

from refsim import ptx
from refsim.errors import RefsimError
from refsim.ptx.async_ops.queue import POLICIES
from refsim.testing.kernel_files import load_kernel_file
from tests.ptx.test_wgmma_mistakes import B_START, KIND, RIGHT, run
from tests.ptx.wgmma_kernels import FENCED, WAIT, Wgmma, tiled, word

table = load_kernel_file(Path(__file__).parent / "suite" / "table.py")
TORN = [kernel for kernel in table.RIGHT if "padding_rows" in kernel.name]


@pytest.mark.parametrize("kernel", TORN, ids=str)
def test_the_note_names_the_rows_and_the_access_that_changes_them(kernel) -> None:
    _, trace = table.suite.run(kernel, "eager", checks=ptx.Checks())
    (note,) = [note for note in trace.notes if note.code == "uninitialised-unused"]
    assert re.search("rows (16|32) to ", note.what)
    assert note.what.endswith("of D are undefined; they reached no output, address or decision")
    assert re.search(r"cp\.async\.bulk|st\.shared", f"{note.what} {note.where}")


@pytest.mark.parametrize("banks", [False, True])
@pytest.mark.parametrize("less", [0, 1])
@pytest.mark.parametrize("kernel", TORN, ids=str)
def test_without_the_check_of_undefined_bits_there_is_a_note(kernel, less: int, banks: bool) -> None:
    _, trace = table.suite.run(kernel, "eager", less=less, checks=ptx.Checks(initialised="off", banks=banks))
    assert trace.findings == ()
    assert [note for note in trace.notes if "not followed without the check uninitialised" in note.what]


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(("row", "told"), [(0, "rows 0 to 0"), (63, "rows 63 to 63"), (21, "rows 21 to 21")])
def test_one_row_of_a(row: int, told: str, policy: str) -> None:
    """All of D is stored: eight chunks of 16 bytes are eight rows."""
    at = 128 * (row // 8) + 16 * (row % 8)
    with pytest.raises(RefsimError, match=told) as found:
        run([*RIGHT[:2], f"setp.ne.u32 %no, %r0, 0; @!%no st.shared.b32 [s+{at}], %r0;", *WAIT], policy=policy)
    assert found.value.code == "race"


@pytest.mark.parametrize("policy", POLICIES)
def test_one_row_of_a_of_one_warpgroup(policy: str) -> None:
    """The second warpgroup multiplies rows of its own, which nothing changes."""
    own = "setp.ge.u32 %no, %r0, 128; @%no add.u64 %word0, %word0, 128;"
    store = f"setp.ne.u32 %no, %r0, 0; @!%no st.shared.b32 [s+{128 * (21 // 8) + 16 * (21 % 8)}], %r0;"
    with pytest.raises(RefsimError, match="rows 21 to 21") as found:
        run([own, *RIGHT[:2], store, *WAIT], threads=256, policy=policy)
    assert found.value.code == "race"


def test_one_row_of_a_that_a_copy_writes_when_the_product_begins() -> None:
    at = 128 * (21 // 8) + 16 * (21 % 8)
    copy = f"setp.eq.u32 %no, %r0, 0; @%no cp.async.ca.shared.global [s+{at}], [%p0], 16;"
    with pytest.raises(RefsimError, match="rows 21 to 21 of D") as found:
        run([copy, *RIGHT])
    assert found.value.code == "read-before-wait"


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("column", [3, 12])
def test_a_column_of_b_is_a_column_of_d(column: int, policy: str) -> None:
    """Thread t holds columns 2 (t % 4), + 1, + 8 and + 9 in registers 0, 1, 4 and 5; the others are cleared."""
    at = 8192 + 128 * (column // 8) + 16 * (column % 8)
    body = [*RIGHT[:2], f"setp.ne.u32 %no, %r0, 0; @!%no st.shared.b32 [s+{at}], %r0;", *WAIT]
    with pytest.raises(RefsimError, match=f"columns {column} to {column}"):
        run(body, policy=policy)
    held = [n for n in range(KIND.registers) if n // 4 == column // 8 and n % 2 == column % 2]
    cleared = [f"mov.f32 %d{n}, 0f00000000;" for n in held]
    assert (run([*body, *cleared], policy=policy) == 0).all()


@pytest.mark.parametrize("swizzle", ["none", "128B"])
@pytest.mark.parametrize(
    ("side", "row", "k", "told"),
    [("a", 21, 3, "rows 16 to 23"), ("a", 63, 15, "rows 56 to 63"), ("b", 12, 9, "columns 8 to 15")],
)
def test_a_chunk_of_eight_rows(side: str, row: int, k: int, told: str, swizzle: str) -> None:
    """Of an operand whose rows or columns lie side by side, 16 bytes hold elements of eight of them."""
    kind = Wgmma(64, 16, "f32", "f16", "f16")
    of_rows = tiled(np.zeros((64, 16), np.uint16), "MN", swizzle)
    at = int(of_rows.address(np.array([row]), np.array([k]), B_START if side == "b" else 0)[0]) // 16 * 16
    store = f"setp.ne.u32 %no, %r0, 0; @!%no st.shared.b32 [s+{at}], %r0;"
    body = [FENCED, kind.issue(turned=(1, 1)), store, *WAIT]
    with pytest.raises(RefsimError, match=told) as found:
        run(body, sets=4, words=(word(of_rows, 0), word(of_rows, B_START)))
    assert found.value.code == "race"


def test_a_race_that_is_recorded_is_recorded_once() -> None:
    kernel = next(kernel for kernel in TORN if kernel.name == "padding_rows_in_flight")
    _, trace = table.suite.run(kernel, "lazy", less=1, checks=ptx.Checks(races="record", initialised="record"))
    assert [error.code for error in trace.findings] == ["race"]
    assert "rows 16 to 31" in trace.findings[0].what
