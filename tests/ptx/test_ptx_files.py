"""PTX from files, as large as they come: what is no regular file is refused unread, and work grows with the text."""

import os
import sys
from pathlib import Path
from types import FrameType

import pytest

from refsim import ptx
from refsim.errors import Kind, RefsimError
from refsim.ptx.lowering import blocks
from refsim.ptx.machine import program
from refsim.ptx.machine.program import forget
from refsim.ptx.text import lexer
from refsim.ptx.text.lexer import tokenize

HEAD = ".version 9.0\n.target sm_90a\n.address_size 64\n"


def refused(path: "str | Path") -> RefsimError:
    with pytest.raises(RefsimError) as caught:
        ptx.load(path)
    assert caught.value.kind == Kind.UNREADABLE
    return caught.value


def test_a_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "k.ptx"
    path.write_text(HEAD + ".entry k() { ret; }\n")
    assert list(ptx.load(path).entries) == list(ptx.load(str(path)).entries) == ["k"]


def test_what_is_no_regular_file_is_refused_unread(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path in (pipe, tmp_path, Path("/dev/zero"), Path("/dev/null")):
        assert refused(path).code == "not-a-file"
    assert refused(tmp_path / "nowhere.ptx").code == "no-such-file"
    assert refused(tmp_path / ("long" * 100)).code == "no-such-file"


def test_a_file_beyond_the_limit_is_refused_by_its_size(tmp_path: Path) -> None:
    path = tmp_path / "big.ptx"
    with path.open("wb") as stream:
        stream.truncate(1 << 40)
    error = refused(path)
    assert error.code == "too-large"
    assert "1099511627776 bytes" in error.what


def test_what_is_no_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "k.ptx"
    path.write_bytes(b"\x7fELF\xff\xfe")
    assert refused(path).code == "unreadable-file"


def test_empty_statements_cost_nothing() -> None:
    assert len(tokenize(";" * 1_000_000)) == len(tokenize(";\n" * 1_000_000)) == 2
    assert tokenize(";\n" * 1000)[-1].line == 1001
    assert len(tokenize("\n \n" * 1_000_000)) == 1


def test_words_beyond_the_limit_are_one_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lexer, "MAX_TOKENS", 1000)
    with pytest.raises(RefsimError, match="more than 1000 words"):
        tokenize("(" * 5000)


def test_marks_in_a_row_are_one_error_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing behind them is looked at: the work is that of as many tokens, whatever follows."""
    monkeypatch.setattr(lexer, "MAX_MARKS", 1024)
    for mark in "({[<-~,@!?":
        found = 0

        def note(frame: FrameType, event: str, argument: object) -> None:
            nonlocal found
            found += event == "call"

        text = HEAD + ".global .u32 x = " + f"{mark}/**/ \n" * 2000 + mark * 2_000_000
        sys.setprofile(note)
        try:
            with pytest.raises(RefsimError, match="more than 1024 marks stand in a row") as caught:
                tokenize(text)
        finally:
            sys.setprofile(None)
        assert caught.value.code == "malformed-ptx"
        assert caught.value.where == "PTX line 1027"
        assert found < 2000
    assert len(tokenize("- " * 1000 + "1;" + "- " * 1000 + "1")) == 2004


def work(text: str) -> int:
    """Function calls that loading and lowering a text takes."""
    forget()
    count = 0

    def note(frame: object, event: str, argument: object) -> None:
        nonlocal count
        count += event == "call"

    ptx.load(HEAD + ".entry warm() { ret; }\n").code("warm")
    sys.setprofile(note)
    try:
        program = ptx.load(text)
        program.code("k")
    finally:
        sys.setprofile(None)
    return count


def entry(body: str, declarations: str = "") -> str:
    return f"{HEAD}{declarations}\n.entry k() {{ .reg .b32 %r<9>; .reg .pred %p<3>; mov.u32 %r1, %tid.x;\n{body}\nret; }}\n"


GROWING = {
    "labels of one place": lambda n: entry("".join(f"A{i}: " for i in range(n))),
    "a chain of branches": lambda n: entry("".join(f"A{i}: bra A{i + 1};" for i in range(n)) + f"A{n}:"),
    "a chain of branches back": lambda n: entry(
        f"bra A{n - 1}; A0: ret;" + "".join(f"A{i}: bra A{i - 1};" for i in range(1, n))
    ),
    "guarded branches": lambda n: entry(
        "".join(f"A{i}: setp.eq.u32 %p1, %r1, {i}; @%p1 bra A{i + 1};" for i in range(n)) + f"A{n}:"
    ),
    "variables": lambda n: entry("ret;", "".join(f".global .u32 g{i} = {i};" for i in range(n))),
    "scopes": lambda n: entry("{ .reg .u32 %q; mov.u32 %q, 1; }" * n),
    "functions that call the next": lambda n: entry(
        f"call f{n};",
        ".func f0() { ret; }" + "".join(f".func f{i}() {{ call f{i - 1}; ret; }}" for i in range(1, n + 1)),
    ),
    "calls of one function": lambda n: entry("call f;" * n, ".func f() { ret; }"),
    "calls through a register": lambda n: entry(
        ".reg .b64 %d; mov.u64 %d, f; P: .callprototype _ ();" + "call %d, P;" * n, ".func f() { ret; }"
    ),
    "locations": lambda n: entry(
        "".join(f".loc 1 {i + 1} 1, function_name $L, inlined_at 1 {i} 1\n" for i in range(n))
    ),
    "straight code": lambda n: entry("add.u32 %r2, %r1, 1;" * n),
}


@pytest.mark.parametrize("name", sorted(GROWING))
def test_work_grows_with_the_text(name: str) -> None:
    """Twice the text, at most twice and a half the function calls."""
    work(GROWING[name](10))
    once, twice = work(GROWING[name](300)), work(GROWING[name](600))
    assert twice < 2.5 * once


def test_registers_that_cross_many_borders_have_places_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where finding who conflicts with whom would cost too much, nobody shares."""
    borders = [0b0111, 0b1100]
    assert blocks.shared_slots([32, 32, 32, 32, 64], borders) == ([0, 1, 2, 0, -1], [32, 32, 32])
    monkeypatch.setattr(blocks, "MAX_PAIRS", 4)
    assert blocks.shared_slots([32, 32, 32, 32, 64], borders) == ([0, 1, 2, 3, -1], [32] * 4)


def test_a_text_that_was_read_lately_is_not_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """One program for a text and a target, while the texts that are kept are few and short."""
    texts = [HEAD.replace("90a", "80") + f".visible .entry k{number}() {{ ret; }}\n" for number in range(3)]
    forget()
    first = ptx.load(texts[0])
    assert ptx.load(texts[0]) is first
    assert ptx.load(texts[0], "sm_90").target == "sm_90"
    assert ptx.load(texts[0]) is first
    monkeypatch.setattr(program, "MOST_PROGRAMS", 2)
    second, third = ptx.load(texts[1]), ptx.load(texts[2])
    assert (ptx.load(texts[1]), ptx.load(texts[2])) == (second, third)
    assert ptx.load(texts[0]) is not first  # the oldest went
    forget()
    monkeypatch.setattr(program, "MOST_KEPT", len(texts[0]) - 1)
    assert ptx.load(texts[0]) is not ptx.load(texts[0])
