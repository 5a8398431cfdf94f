"""Which lines of source stand beside a finding: of the file that it names, the place to look at first in front."""

from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import strategies as st

from refsim.kernels import Kernel
from refsim.testing.excerpts import excerpts
from refsim.testing.verdicts import Verdict

CUDA = "\n".join(f"line {number};" for number in range(1, 21))
RACE = """[race] writes 4 B at 0x10 while st.shared at PTX line 3 (k.cu:4) of thread 1
  at: ld.shared.u16 at PTX line 318 (a.cuh:9 in f, called at k.cu:15), thread 0
  rule: none"""


@dataclass(frozen=True)
class Nothing:
    n: int = 0


def kernel(declared_in: Path | None = None, **code) -> Kernel:
    return Kernel(
        "k",
        oracle=lambda problem: {},
        problem=st.builds(Nothing),
        run=lambda launcher, problem: {},
        outputs={"y": ""},
        recipe=Nothing,
        declared_in=declared_in,
        **code,
    )


def shown(finding: str, of: Kernel) -> list[tuple[str, int, list[int]]]:
    verdict = Verdict("k", "fail", {}, "quick", finding=finding)
    return [(each.name, each.line, [number for number, _ in each.rows]) for each in excerpts(verdict, of)]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "k.cu").write_text(f'#include "a.cuh"\n{CUDA}')
    (tmp_path / "a.cuh").write_text(CUDA)
    return tmp_path / "k.cu"


def test_where_it_happened_comes_first_and_then_whence_it_was_called(source):
    assert shown(RACE, kernel(file=source)) == [("a.cuh", 9, [7, 8, 9, 10, 11]), ("k.cu", 15, [13, 14, 15, 16, 17])]


def test_the_ends_of_a_file_are_kept_to(source):
    assert shown("x (k.cu:1)", kernel(file=source)) == [("k.cu", 1, [1, 2, 3])]
    assert shown("x (k.cu:21)", kernel(file=source)) == [("k.cu", 21, [19, 20, 21])]
    assert shown("x (k.cu:22)", kernel(file=source)) == []
    assert shown("x (k.cu:0)", kernel(file=source)) == []


def test_lines_that_are_shown_already_are_not_shown_again(source):
    assert [line for _, line, _ in shown("a (k.cu:4), b (k.cu:5), c (k.cu:12)", kernel(file=source))] == [4, 12]


def test_lines_of_two_files_are_two_places(source):
    assert [(name, line) for name, line, _ in shown("a (k.cu:4), b (a.cuh:4)", kernel(file=source))] == [
        ("k.cu", 4),
        ("a.cuh", 4),
    ]


def test_where_it_happened_outranks_a_suspect(source):
    finding = "1 differs\nsuspect contraction: fits, k.cu:7; agrees\n  at: st at PTX line 5 (k.cu:15)"
    assert [line for _, line, _ in shown(finding, kernel(file=source))] == [15, 7]


def test_a_line_of_ptx_is_none_of_cuda(source):
    source.write_text(CUDA)
    assert shown("[x]\n  at: st at PTX line 8, thread 0", kernel(file=source)) == []


def test_a_suspect_outranks_who_wrote_the_element(source):
    finding = (
        "1 differs\nwritten by block 0, by st at PTX line 5 (k.cu:15)\nlikely cause: contraction: fits, k.cu:7 (agrees)"
    )
    assert [line for _, line, _ in shown(finding, kernel(file=source))] == [7, 15]


def test_a_file_that_is_not_the_kernels_is_not_looked_for(source):
    (source.parent / "other.cu").write_text(CUDA)
    assert shown("at other.cu:3 and atomic.h:57", kernel(file=source)) == []


def test_of_two_files_with_one_name_none_is_guessed(source):
    (source.parent / "sub").mkdir()
    (source.parent / "sub/a.cuh").write_text(CUDA)
    source.write_text(f'#include "a.cuh"\n#include "sub/a.cuh"\n{CUDA}')
    assert shown("x (a.cuh:3)", kernel(file=source)) == []


def test_a_source_that_is_gone_leaves_the_finding_alone(source):
    declared = kernel(file=source)
    source.unlink()
    assert shown(RACE, declared) == []


def test_a_text_is_shown_and_found_in_the_file_that_spells_it(tmp_path):
    declaring = tmp_path / "kernels.py"
    declaring.write_text(f'import x\nSOURCE = """\n{CUDA}"""\n')
    (excerpt,) = excerpts(Verdict("k", "fail", {}, "quick", finding="x (source.cu:3)"), kernel(declaring, source=CUDA))
    assert (excerpt.line, excerpt.file, excerpt.file_line) == (3, declaring, 5)
    assert declaring.read_text().splitlines()[excerpt.file_line - 1] == "line 3;"
    (excerpt,) = excerpts(Verdict("k", "fail", {}, "quick", finding="x (source.cu:3)"), kernel(source=CUDA))
    assert (excerpt.line, excerpt.file, excerpt.file_line) == (3, None, None)


def test_a_text_is_not_looked_for_where_it_stands_otherwise_or_twice(tmp_path):
    declaring = tmp_path / "kernels.py"
    for content in (f"ONE, OTHER = {CUDA!r}, 1", f"{CUDA}\n{CUDA}"):
        declaring.write_text(content)
        (excerpt,) = excerpts(
            Verdict("k", "fail", {}, "quick", finding="x (source.cu:3)"), kernel(declaring, source=CUDA)
        )
        assert (excerpt.line, excerpt.file, excerpt.file_line) == (3, None, None)
    assert shown("x (source.cu:0)", kernel(source=CUDA)) == []
    assert shown("x (source.cu:21)", kernel(source=CUDA)) == []
    (excerpt,) = excerpts(
        Verdict("k", "fail", {}, "quick", finding="x (source.cu:1)"), kernel(source=CUDA.replace("\n", "\r\n"))
    )
    assert excerpt.rows == ((1, "line 1;"), (2, "line 2;"), (3, "line 3;"))


def test_ptx_without_lines_of_cuda_is_shown_itself(tmp_path):
    (tmp_path / "k.ptx").write_text(CUDA)
    assert shown("[x]\n  at: st at PTX line 8, thread 0", kernel(file=tmp_path / "k.ptx")) == [
        ("k.ptx", 8, [6, 7, 8, 9, 10])
    ]
    assert shown("st at PTX line 8", kernel(ptx=CUDA)) == [("PTX", 8, [6, 7, 8, 9, 10])]


def test_the_python_file_of_a_jit_is_shown_where_it_declares_the_kernel(tmp_path):
    declaring = tmp_path / "matmul.py"
    declaring.write_text(CUDA)
    assert shown("st at PTX line 8 (matmul.py:5)", kernel(declaring, ptx=CUDA)) == [("matmul.py", 5, [3, 4, 5, 6, 7])]


def test_the_marked_line_is_marked_and_long_ones_are_cut(source):
    source.write_text("a;\n\tb" + "b" * 500 + "\nc;")
    (excerpt,) = excerpts(Verdict("k", "fail", {}, "quick", finding="x (k.cu:2)"), kernel(file=source))
    heading, first, marked, last = excerpt.lines()
    assert heading == "    k.cu:2"
    assert (first, last) == ("    1 | a;", "    3 | c;")
    assert marked.startswith("  > 2 |     bbb")
    assert marked.endswith("...")
    assert len(marked) < 160
