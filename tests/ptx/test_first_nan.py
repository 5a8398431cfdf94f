"""The first NaN: each kernel's report names the line, thread and values that made NaN or infinities of an output."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from refsim import ptx
from refsim.device.compile import compiled
from refsim.kernel_code import KernelCode
from refsim.ptx.checks import first_nan
from refsim.ptx.checks.first_nan import NanArray, NanRow, NonFinite

SOURCE = Path(__file__).with_name("first_nan.cu")


@dataclass(frozen=True)
class Case:
    """A kernel, the thread that the first row with its role names, how many elements the output names, and a word of
    what it says. `x` changes the input 0, 1, ... 31, `y` is the type and size of the output."""

    entry: str
    thread: int
    count: int
    said: str
    role: str = "born"
    x: dict[int, float] | None = None
    y: tuple[str, int] = ("f4", 32)
    dtype: str = "f4"
    format: str = ""
    of_x: str = ""


BORN = (
    Case("softcap", 23, 9, "= 132.727936) gives inf"),
    Case("product", 4, 28, "= 4, 9.99999968e+37) gives inf"),
    Case("quotient", 4, 1, "= 4, %f2 = 0) gives inf"),
    Case("reciprocal", 7, 1, "= 0) gives inf"),
    Case("root", 0, 2, "= -1) gives nan"),
    Case("logarithm", 0, 3, "= -2) gives nan"),
    Case("fused", 3, 29, "= 4, "),
    Case("twice", 23, 9, "= 2.3e+307, 8) gives inf", y=("f8", 32), dtype="f8"),
    Case("half_sum", 17, 15, "= 33984"),
    Case("to_half", 22, 10, "= 66000) gives inf", y=("f2", 32)),
    Case("bfloat", 19, 13, "gives inf"),
    Case("upper_half", 17, 15, "= 33984, %r", y=("f4", 64)),
    Case("pair_of_bfloats", 7, 25, "gives inf"),
    Case("loop", 4, 28, "gives inf, run 4 by the thread"),
    Case("handed_over", 18, 14, "= 18, "),
    Case("shuffled", 3, 32, "= 3"),
    Case("diverged", 3, 15, "gives inf"),
    Case("guarded", 21, 11, "= 21, "),
    Case("atomic", 8, 24, "(7.99999995e+37) gives inf", y=("f4", 64)),
    Case("reduction", 8, 2, "(7.99999995e+37) gives inf"),
    Case("vectors", 1, 7, "= 6, "),
    Case("called", 19, 13, "= 1.90000007e+19"),
    Case("warp_product", 8, 16, "= 3.00000001e+38) gives inf", y=("f4", 128)),
    Case("unknown_bits", 0, 32, "gives inf", "integer bits"),
    Case("masked_row", 0, 8, "= -inf, ", "NaN of infinities"),
    Case("masked_row", 0, 8, "gives -inf", "constant"),
    Case("masks", 0, 8, "gives -inf", "constant"),
    Case("given", 5, 2, "gives nan", "passed on", {5: np.nan, 9: np.inf}),
    Case("copied", 26, 1, "gives nan", "passed on", {5: np.nan}),
    Case("codes", 27, 1, "moves it", "passed on", {27: 127}, dtype="u1"),
    Case("codes", 27, 1, "moves it", "passed on", {27: 127}, dtype="u1", of_x="e4m3"),
    Case("to_codes", 18, 14, "= 18, ", y=("u1", 32), format="e4m3"),
    Case("to_codes", 18, 14, "= inf, ", "NaN of infinities", y=("u1", 32), format="e4m3"),
)
INPUTS = {"given": "argument 0[5]", "copied": "argument 0[5]", "codes": "argument 0[27]"}
SILENT = ("unused", "maximum", "vanishing", "integers", "replaced", "masked_sum", "overwritten")


@pytest.fixture(scope="module")
def program() -> ptx.Program:
    made = compiled(KernelCode(file=SOURCE), "sm_90a")
    return ptx.load(made.text, made.target)


def rows_of(
    program: ptx.Program, entry: str, x: Any, y: Any, of_x: str = "", of_y: str = "", policy: Any = "eager"
) -> list[NanRow]:
    """Return the report of one launch of 32 threads."""
    known = {"argument 0": NanArray.of(x.dtype, of_x, x.shape), "argument 1": NanArray.of(y.dtype, of_y, y.shape)}
    born = NonFinite(known=known)
    program.launch(entry, 1, 32, [x, y], following=born, policy=policy)
    return born.rows()


def given(case: Case) -> tuple[Any, Any]:
    x = np.arange(32).astype(case.dtype)
    for at, value in (case.x or {}).items():
        x[at] = value
    return x, np.zeros(case.y[1], case.y[0])


def marked(entry: str, role: str) -> int:
    """Return the line of the source with a mark."""
    return next(at for at, line in enumerate(SOURCE.read_text().splitlines(), 1) if f"// {entry}: {role}" in line)


@pytest.mark.parametrize("case", BORN, ids=lambda case: f"{case.entry}-{case.role}-{case.of_x}")
def test_a_report_names_line_and_thread(program: ptx.Program, case: Case) -> None:
    x, y = given(case)
    found = rows_of(program, case.entry, x, y, case.of_x, case.format)
    assert found[0].role == "output"
    assert found[0].what.startswith(f"{case.count} of {case.y[1]} elements are NaN or infinite")
    row = next(row for row in found if row.role == case.role)
    line = "" if case.role == "constant" else f":{marked(case.entry, case.role)}"  # a constant may have no line
    assert f"first_nan.cu{line}" in row.where
    assert f"thread ({case.thread}, 0, 0) of block (0, 0, 0)" in row.where
    assert case.said in row.what
    stored = next(row for row in found if row.role == "stored")
    assert "argument 1[" in stored.what


@pytest.mark.parametrize("entry", INPUTS)
def test_nan_of_an_input_is_named_as_an_element(program: ptx.Program, entry: str) -> None:
    found = rows_of(program, entry, *given(next(case for case in BORN if case.entry == entry)))
    assert found[1] == NanRow("input", INPUTS[entry], f"is nan{' as e4m3' * (entry == 'codes')} before the launch")


@pytest.mark.parametrize(("count", "role"), [(12, "input"), (20, "loaded")])
def test_bytes_are_codes_while_less_than_half_are_nan(program: ptx.Program, count: int, role: str) -> None:
    """Otherwise they are of another format, and the NaN is loaded from bytes of unknown meaning."""
    x = np.where(np.arange(32) < count, 127, 0).astype("u1")
    assert rows_of(program, "codes", x, np.zeros(32, "f4"))[1].role == role


@pytest.mark.parametrize("entry", SILENT)
def test_a_kernel_without_nan_in_an_output_has_no_report(program: ptx.Program, entry: str) -> None:
    dtype = "i4" if entry == "integers" else "f4"
    x = np.arange(32).astype(dtype)
    if entry == "replaced":
        x[3] = np.nan
    assert rows_of(program, entry, x, np.zeros(32, dtype)) == []


@pytest.mark.parametrize("policy", ["lazy", "random"])
@pytest.mark.parametrize("entry", ["softcap", "handed_over", "copied", "warp_product", "atomic"])
def test_every_schedule_finds_the_line(program: ptx.Program, entry: str, policy: str) -> None:
    case = next(case for case in BORN if case.entry == entry)
    found = rows_of(program, entry, *given(case), policy=policy)
    assert any(row.role == case.role and f"first_nan.cu:{marked(entry, case.role)}" in row.where for row in found)


def test_codes_that_integers_made_are_named_by_their_store(program: ptx.Program) -> None:
    x, y = np.arange(32, dtype=np.float32), np.zeros(32, np.uint8)
    (row,) = rows_of(program, "overflowing_codes", x, y, of_y="e4m3")
    assert row.role == "integer bits"
    at = (
        SOURCE.read_text()
        .splitlines()
        .index('extern "C" __global__ void overflowing_codes(const float* x, unsigned char* y) {')
    )
    assert "st.global.u8 at PTX line" in row.where
    assert f"(first_nan.cu:{at + 2})" in row.where
    assert "thread 5 of the grid" in row.where
    assert row.what.startswith("27 elements, the first argument 1[5] is nan")


def test_births_without_effect_are_counted_last(program: ptx.Program) -> None:
    x = np.arange(32, dtype=np.float32)
    found = rows_of(program, "diverged", x, np.zeros(32, np.float32))
    assert [row.role for row in found] == ["output", "born", "stored"]
    x[0] = np.inf
    found = rows_of(program, "quotient", x, np.zeros(32, np.float32))
    assert [row.role for row in found] == ["output", "born", "stored", "also"]


def test_a_later_wave_names_its_block_and_its_own_runs(program: ptx.Program) -> None:
    x, y = np.arange(32, dtype=np.float32), np.zeros(32 << 11, np.float32)
    known = {"argument 1": NanArray.of(y.dtype, shape=(1 << 11, 32))}
    born = NonFinite(known=known)
    program.launch("many_blocks", 1 << 11, 32, [x, y], following=born)
    output, row, stored = born.rows()
    assert output.what == "28 of 65536 elements are NaN or infinite, the first argument 1[1500, 4] is inf"
    assert f"first_nan.cu:{marked('many_blocks', 'born')}), thread (4, 0, 0) of block (1500, 0, 0)" in row.where
    assert "run" not in row.what
    assert stored.what == "argument 1[1500, 4], and 27 other elements from there"


def roles_of(program: ptx.Program, entry: str, x: Any, y: Any) -> list[str]:
    return [row.role for row in rows_of(program, entry, x, y)]


@pytest.mark.parametrize("entry", [*SILENT, "vanishing_bits", "halves"])
def test_bits_of_unknown_format_are_marked_by_their_statements(program: ptx.Program, entry: str) -> None:
    dtype = "i4" if entry == "integers" else "f4"
    born = NonFinite()
    program.launch(entry, 1, 32, [np.arange(32).astype(dtype), np.zeros(32, dtype)], following=born)
    found = born.rows()
    assert [row.role for row in found] == (["output", "born", "stored"] if entry == "halves" else [])
    if found:
        assert found[0].what == "15 of 64 elements are NaN or infinite, the first argument 1[49]"


def test_an_atomic_adds_to_what_was_there(program: ptx.Program) -> None:
    x, y = np.arange(32, dtype=np.float32), np.zeros(64, np.float32)
    assert roles_of(program, "atomic", x, y) == ["output", "born", "stored"]
    found = rows_of(program, "atomic_found", x, y)
    assert [row.role for row in found] == ["output", "born", "passed on", "stored"]
    assert "thread (8, 0, 0)" in found[1].where
    y[:] = 0
    y[0] = 3e38
    found = rows_of(program, "atomic", x, y)
    assert "thread (3, 0, 0)" in found[1].where


def test_a_constant_is_named_once(program: ptx.Program) -> None:
    assert roles_of(program, "masks", np.arange(32, dtype=np.float32), np.zeros(32, np.float32)) == [
        "output",
        "constant",
        "stored",
    ]


def test_a_statement_that_no_lane_runs_passes_nothing_on(program: ptx.Program) -> None:
    x, y = np.arange(32, dtype=np.float32), np.zeros(32, np.float32)
    assert roles_of(program, "never_guarded", x, y) == ["output", "born", "stored"]


def test_elements_that_no_thread_stored_are_left_out(program: ptx.Program) -> None:
    y = np.full(40, 0x7F, np.uint8)
    (row,) = rows_of(program, "overflowing_codes", np.arange(32, dtype=np.float32), y, of_y="e4m3")
    assert row.what.startswith("27 elements")


@pytest.mark.parametrize("dtype", ["u2", "u4"])
def test_a_product_of_given_nan_is_no_birth(program: ptx.Program, dtype: str) -> None:
    x, y = np.full(256, 0x3F80, np.uint16), np.zeros(128, np.float32)
    x[20] = 0x7FC0
    found = rows_of(program, "given_product", x.view(dtype), y)
    assert found[0].what.startswith("8 of 128")
    if dtype == "u2":
        assert found[1] == NanRow("input", "argument 0[20]", "is nan as bf16 before the launch")
        assert {row.role for row in found[2:-1]} == {"passed on"}
    else:
        assert found[1].role == "loaded"
        assert found[1].what.endswith("its matrices held NaN or infinities before")


def test_a_product_with_a_sum_in_halves_is_a_birth(program: ptx.Program) -> None:
    found = rows_of(program, "half_product", np.zeros(1, np.float32), np.zeros(128, np.float16))
    assert [row.role for row in found[:2]] == ["output", "born"]
    assert f"first_nan.cu:{marked('half_product', 'born')}" in found[1].where
    assert found[0].what.startswith("64 of 128")
    assert "65504) gives inf" in found[1].what


def test_each_element_of_a_word_has_its_own_origin(program: ptx.Program) -> None:
    x = np.zeros(64, np.uint8)
    x[[26, 27]] = 0x7F
    found = rows_of(program, "code_pairs", x, np.zeros(64, np.float32))
    assert found[1].where == "argument 0[26]"
    assert found[-1].what.startswith("argument 1[26]")
    found = rows_of(program, "stale_half", np.zeros(32, np.float32), np.zeros(32, np.float32))
    assert "thread (1, 0, 0)" in found[1].where


def test_the_top_bit_is_no_part_of_an_unsigned_code() -> None:
    assert first_nan.numbers(np.array([0xA5], np.uint8), ("ue4m3", 1)).tolist() == [[2.0**-3 * 1.625]]
