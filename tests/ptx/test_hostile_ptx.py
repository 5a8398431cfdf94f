"""Hostile PTX: whatever the text, loading and launching end with a RefsimError or a result, in bounded memory and steps."""

import sys
import tracemalloc
from pathlib import Path
from types import FrameType

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refsim import ptx
from refsim.errors import RefsimError
from refsim.ptx.machine.program import forget
from refsim.ptx.text import inline

HEAD = ".version 9.0\n.target sm_90a\n.address_size 64\n"
GPU = Path(__file__).parents[2] / "gpu"
KERNELS = sorted(
    path for source in (GPU / "kernels").glob("*.cu") for path in (GPU / "ptx").glob(f"{source.stem}.sm_*.ptx")
)
CHECKS = ptx.Checks(seconds=0.3)
MEMORY_LIMIT = 128 << 20


def attempt(text: str) -> str:
    """Load, then launch every entry with arguments that fit its parameters; the error's code, or "ran"."""
    try:
        program = ptx.load(text if "\n" in text else text + "\n")
        for name, parameters in program.entries.items():
            arguments = [
                np.zeros(64, np.uint32) if parameter.size == 8 else np.zeros(min(parameter.size, 1 << 16), np.uint8)
                for parameter in parameters
            ]
            program.launch(name, (1,), (33,), arguments, checks=CHECKS)
    except RefsimError as error:
        return error.code if str(error) else "silent"
    return "ran"


def entry(body: str, declarations: str = "") -> str:
    registers = ".reg .b16 %h<4>; .reg .b32 %r<8>; .reg .b64 %d<8>; .reg .pred %p<4>;"
    return f"{HEAD}{declarations}\n.entry k(.param .u64 p)\n{{\n{registers}\n{body}\n}}\n"


COPIED = ".shared .align 16 .b8 t[64]; .shared .align 8 .b64 b;"
ONE_COPY = (
    "ld.param.u64 %d1, [p]; mov.u32 %r1, t; mov.u32 %r2, b; mov.u32 %r3, %tid.x; setp.ne.u32 %p1, %r3, 0; @%p1 ret; "
    "mbarrier.init.shared.b64 [%r2], 1;"
)

# fmt: off
CORPUS = {
    "empty": "\n",
    "binary": "\x00\x01\x7fELF\n",
    "only a version": ".version 9.0\n",
    "version is a brace": ".version {\n",
    "target is a number": ".version 9.0\n.target 90\n",
    "unknown target": entry("ret;").replace("sm_90a", "sm_x"),
    "target without digits": entry("add.u32 %r1, %r2, %r3; ret;").replace("sm_90a", "compute"),
    "unclosed comment": HEAD + "/* never\n",
    "unclosed string": HEAD + '.file 1 "never\n',
    "unclosed function": HEAD + ".entry k() {\n ret;\n",
    "unclosed list": HEAD + ".entry k(.param .u64 a\n",
    "stray brace": HEAD + "}\n",
    "nested braces": entry("{" * 20000 + "}" * 20000),
    "nested vectors": entry("mov.b32 %r1, " + "{" * 20000),
    "nested addresses": entry("ld.global.u32 %r1, " + "[" * 20000),
    "nested negations": entry("mov.pred %p1, " + "!" * 20000 + "%p1;"),
    "nested initialisers": HEAD + ".global .u32 t[2] = " + "{" * 20000 + "1" + "}" * 20000 + ";\n",
    "long line": entry("mov.u32 %r1, " + "1" * 500000 + ";"),
    "huge number": entry("mov.u64 %d1, " + "9" * 60 + "; ret;"),
    "huge float": entry("mov.f64 %d1, 1e999999999; ret;"),
    "octal nine": entry("mov.u32 %r1, 0789; ret;"),
    "huge variable": HEAD + ".global .b8 t[99999999999999];\n" + entry("ret;")[len(HEAD) :],
    "negative variable": HEAD + ".global .b8 t[-5];\n" + entry("ret;")[len(HEAD) :],
    "product of dimensions": HEAD + ".shared .b8 t[65536][65536][65536];\n" + entry("ret;")[len(HEAD) :],
    "huge alignment": HEAD + ".global .align 4611686018427387904 .b8 t[4];\n" + entry("mov.u64 %d1, t; ret;")[len(HEAD) :],
    "zero alignment": HEAD + ".global .align 0 .b8 t[4];\n" + entry("mov.u64 %d1, t; ret;")[len(HEAD) :],
    "negative alignment": HEAD + ".shared .align -4 .b8 t[4];\n" + entry("mov.u64 %d1, t; ret;")[len(HEAD) :],
    "odd alignment": HEAD + ".shared .align 3 .b8 t[4];\n" + entry("mov.u64 %d1, t; ret;")[len(HEAD) :],
    "huge shared": HEAD + ".shared .b8 t[1000000000];\n" + entry("mov.u64 %d1, t; ret;")[len(HEAD) :],
    "huge local": entry(".local .b8 t[1000000000]; ret;"),
    "many registers": entry(".reg .b32 %x<2000000000>; mov.u32 %x1999999999, 1; ret;"),
    "negative registers": entry(".reg .b32 %x<-3>; mov.u32 %x1, 1; ret;"),
    "huge parameter": HEAD + ".entry k(.param .b8 a[1000000000]) { ret; }\n",
    "initialiser longer than its variable": HEAD
    + ".global .u8 t[1] = {1,2,3,4,5};\n" + entry("mov.u64 %d1, t; ret;")[len(HEAD) :],
    "initialiser of names": HEAD + ".global .u64 t[1] = {generic(k)};\n" + entry("ret;")[len(HEAD) :],
    "duplicate labels": entry("A: A: bra A;"),
    "label nowhere": entry("bra NOWHERE;"),
    "branch to a register": entry("bra %r1;"),
    "branch to a number": entry("bra 5;"),
    "branch into another function": HEAD + ".func f() { A: ret; }\n.entry k() { bra A; }\n",
    "label at the end": entry("bra END; END:"),
    "no instruction": entry(""),
    "branch to itself": entry("A: bra A;"),
    "table of nothing": entry("T: .branchtargets NOWHERE; brx.idx %r1, T;"),
    "table is a register": entry("brx.idx %r1, %r2;"),
    "table is a label": entry("A: brx.idx %r1, A;"),
    "guard is a number": entry("@5 ret;"),
    "guard is a register": entry("@%r1 ret;"),
    "wide guard": entry("@%d1 mov.u32 %r1, 1; ret;"),
    "guard is negated twice": entry("@!!%p1 ret;"),
    "predicate as data": entry("add.u32 %r1, %p1, %p2; ret;"),
    "data as predicate": entry("selp.b32 %r1, 1, 2, %d1; ret;"),
    "result is a number": entry("add.u32 5, %r1, %r2; ret;"),
    "result is a special register": entry("mov.u32 %tid.x, %r2; ret;"),
    "result is nothing": entry("mov.u32 _, %r2; ret;"),
    "source is nothing": entry("add.u32 %r1, _, %r2; ret;"),
    "no operands": entry("add.u32; ret;"),
    "too many operands": entry("add.u32 %r1, %r2, %r3, %r4, %r5, %r6; ret;"),
    "three results": entry("setp.eq.u32 %p1|%p2|%p3, %r1, %r2; ret;"),
    "vector where none goes": entry("add.u32 %r1, {%r1, %r2}, %r3; ret;"),
    "vector too long": entry("mov.b32 %r1, {%h1, %h2, %h3, %h1, %h2}; ret;"),
    "vector of three": entry("mov.b64 %d1, {%r1, %r2, %r3}; ret;"),
    "empty vector": entry("mov.b64 %d1, {}; ret;"),
    "vector of vectors": entry("mov.b64 %d1, {{%r1, %r2}, %r3}; ret;"),
    "register of 128 bits": entry(".reg .b128 %q; mov.b64 %d1, %q; ret;"),
    "vector of wide registers": entry("mov.b32 {%d1, %d2}, %r1; ret;"),
    "too short a vector": entry("ld.param.u64 %d1, [p]; ld.global.v4.u32 {%r1, %r2}, [%d1]; ret;"),
    "store of a longer vector": entry("ld.param.u64 %d1, [p]; st.global.v2.u32 [%d1], {%r1, %r2, %r3, %r4}; ret;"),
    "store of a shorter vector": entry("ld.param.u64 %d1, [p]; st.global.v4.u32 [%d1], {%r1, %r2}; ret;"),
    "store of a vector without one": entry("ld.param.u64 %d1, [p]; st.global.u32 [%d1], {%r1, %r2, %r3}; ret;"),
    "address of a predicate": entry("ld.global.u32 %r1, [%p1]; ret;"),
    "address of a vector": entry("ld.global.u32 %r1, [{%r1, %r2}]; ret;"),
    "address of a label": entry("A: ld.global.u32 %r1, [A]; ret;"),
    "address of nothing": entry("ld.global.u32 %r1, []; ret;"),
    "huge offset": entry("ld.global.u32 %r1, [%d1+99999999999999999999999]; ret;"),
    "offset beyond 64 bits": entry("ld.param.u64 %d1, [p+9223372036854775807]; ret;"),
    "negative offset": entry("ld.param.u64 %d1, [p-8]; ret;"),
    "null pointer": entry("mov.u64 %d1, 0; st.global.u32 [%d1], %r1; ret;"),
    "wild pointer": entry("mov.u64 %d1, -1; ld.u32 %r1, [%d1]; ret;"),
    "unknown symbol": entry("mov.u64 %d1, nobody; ret;"),
    "symbol of a function": entry("mov.u64 %d1, k; ret;"),
    "unknown special register": entry("mov.u32 %r1, %pm0; ret;"),
    "undeclared axis": entry("mov.u32 %r1, %tid.q; ret;"),
    "unknown instruction": entry("frobnicate.f32 %r1, %r2; ret;"),
    "unknown modifier": entry("add.sideways.u32 %r1, %r2, %r3; ret;"),
    "unknown type": entry(".reg .f33 %q; ret;"),
    "barrier of nobody": entry("bar.sync 0, 0; ret;"),
    "barrier 99": entry("bar.sync 99; ret;"),
    "barrier of a third of a warp": entry("bar.sync 0, 10; ret;"),
    "barrier nobody else reaches": entry("mov.u32 %r1, %tid.x; setp.eq.u32 %p1, %r1, 0; @%p1 bar.sync 0, 64; ret;"),
    "shuffle with an empty mask": entry("shfl.sync.idx.b32 %r1, %r2, 0, 31, 0; ret;"),
    "divergent shuffle": entry(
        "mov.u32 %r1, %tid.x; setp.eq.u32 %p1, %r1, 0; @%p1 shfl.sync.idx.b32 %r1, %r2, 0, 31, -1; bar.warp.sync -1; ret;"
    ),
    "atomic beyond everything": entry("atom.global.add.u32 %r1, [%d1+4], 1; ret;"),
    "atomic on a parameter": entry("atom.add.u32 %r1, [p], 1; ret;"),
    "store to a parameter": entry("st.param.u64 [p], %d1; ret;"),
    "store to a constant": entry("mov.u64 %d1, c; st.global.u32 [%d1], 1; ret;", ".const .u32 c = 1;"),
    "copy of gigabytes": entry(
        f"{ONE_COPY} cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r1], [%d1], 0x7fc00000, [%r2]; ret;",
        COPIED,
    ),
    "store of gigabytes": entry(
        f"{ONE_COPY} cp.async.bulk.global.shared::cta.bulk_group [%d1], [%r1], 0x7fc00000; ret;", COPIED
    ),
    "prefetch of gigabytes": entry(f"{ONE_COPY} cp.async.bulk.prefetch.L2.global [%d1], 0x7fc00000; ret;", COPIED),
    "recursive call": HEAD + ".func f() { call f; ret; }\n.entry k() { call f; ret; }\n",
    "call of nobody": entry("call nobody; ret;"),
    "call of an entry": entry("call k; ret;"),
    "call through a register": entry("call %d1, (p), T; T: .callprototype _ (.param .u64 _); ret;"),
    "call with too few": HEAD + ".func f(.param .u32 a) { ret; }\n.entry k() { call f; ret; }\n",
    "call with a number": HEAD + ".func f(.param .u32 a) { ret; }\n.entry k() { call f, (5); ret; }\n",
    "calls that double": HEAD + ".func f0() { ret; }\n"
    + "".join(f".func f{n}() {{ call f{n - 1}; call f{n - 1}; ret; }}\n" for n in range(1, 40))
    + ".entry k() { call f39; ret; }\n",
    "register parameter": HEAD + ".func (.reg .u32 r) f(.reg .u32 a) { ret; }\n",
    "two entries of one name": entry("ret;") + entry("trap;")[len(HEAD) :],
    "section that never closes": HEAD + ".section .debug_info { .b8 1,\n",
    "location of no file": entry(".loc 7 99999999 5\nret;"),
    "location without numbers": entry(".loc\nret;"),
    "pragma without an end": HEAD + '.pragma "nounroll"\n',
    "address of 32 bits": HEAD.replace("64", "32") + ".entry k() { ret; }\n",
    "division by zero": entry("div.u32 %r1, %r2, 0; rem.s64 %d1, %d2, 0; ret;"),
    "endless loop with a store": entry("ld.param.u64 %d1, [p]; A: st.global.u32 [%d1], %r1; add.u32 %r1, %r1, 1; bra A;"),
    "endless loop of barriers": entry("A: bar.sync 0; bra A;"),
    "endless loop of shuffles": entry("A: shfl.sync.idx.b32 %r1, %r1, 0, 31, 1; bra A;").replace("1; bra", "-1; bra"),
}


REFUSED = {
    "branch to itself": "timeout", "endless loop with a store": "race", "endless loop of barriers": "timeout",
    "null pointer": "out-of-bounds", "wild pointer": "out-of-bounds", "barrier 99": "barrier-misuse",
    "barrier of nobody": "barrier-misuse", "recursive call": "unsupported-feature", "call through a register": "uninitialised",
    "call of nobody": "unsupported-feature", "call of an entry": "unsupported-feature", "calls that double": "timeout",
    "unknown instruction": "unknown-instruction", "unknown symbol": "unknown-symbol", "huge shared": "launch-limit",
    "huge local": "launch-limit", "label nowhere": "malformed-ptx", "store to a constant": "read-only",
    "shuffle with an empty mask": "divergent-sync", "register of 128 bits": "malformed-ptx",
    "unknown target": "unknown-target", "no instruction": "ran", "barrier nobody else reaches": "deadlock",
    "undeclared axis": "unsupported-feature", "address of 32 bits": "unsupported-feature",
    **dict.fromkeys(
        (
            "table is a label", "table is a register", "branch to a register", "branch to a number", "empty vector",
            "vector of three", "store of a longer vector", "huge offset", "duplicate labels", "wide guard", "zero alignment",
            "negative alignment", "odd alignment", "predicate as data", "data as predicate", "two entries of one name",
        ),
        "malformed-ptx",
    ),
}
# fmt: on


def calls_to_load(text: str) -> int:
    """How many functions reading the text calls: a measure of its time that no other process disturbs."""
    forget()
    calls = 0

    def count(frame: FrameType, event: str, argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        ptx.load(text)
    except RefsimError:
        pass
    finally:
        sys.setprofile(before)
    return calls


@pytest.mark.parametrize("name", sorted(CORPUS))
def test_a_hostile_text_ends_well(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says what is wrong where REFUSED knows; memory and the steps of loading grow with the text."""
    monkeypatch.setattr(inline, "MAX_INLINED", 1000)  # beyond it bodies are shared, as beyond the real limit
    text = CORPUS[name]
    forget()
    tracemalloc.start()
    try:
        code = attempt(text)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert code == REFUSED.get(name, code)
    assert peak < MEMORY_LIMIT + 40 * len(text)
    assert calls_to_load(text) < 2000 + 20 * len(text)


def test_every_expected_error_has_its_text() -> None:
    assert set(REFUSED) <= set(CORPUS)


def fragments() -> list[str]:
    """Pieces of the project's kernels: the head and one entry each, cut where a statement ends."""
    found = []
    for kernel in KERNELS:
        text = kernel.read_text()
        start = text.index(".visible .entry")
        end = text.index(".visible .entry", start + 1)
        if end - start < 40000:
            found.append(text[: text.index("\n", text.index(".address_size"))] + "\n" + text[start:end] + "\n")
    return found


FRAGMENTS = fragments()
# fmt: off
SOUP = [
    ".reg", ".b32", ".b64", ".pred", "%r1", "%r2", "%d1", "%p1", "%x<9>", "add.u32", "mov.b64", "ld.global.u32",
    "st.shared.v4.f32",
    "bra", "L1", "L1:", "ret", ";", ";", ";", ",", ",", "{", "}", "(", ")", "[", "]", "+", "-", "@", "!", "|",
    "0", "1", "-1", "0x", "0f3F800000",
    "1.5", "99999999999", ".shared", ".local", ".param", ".align", "call", "bar.sync", "shfl.sync.idx.b32", "setp.eq.s32",
    ".branchtargets", "brx.idx", "_", "p", "k", "%tid.x", ".loc", ".entry", ".func", "exit", "trap",
    "\n", "=", ":", "<", ">", "/*", "//", '"', "é",
]
# fmt: on


@given(tokens=st.lists(st.sampled_from(SOUP), max_size=60), inside=st.booleans())
def test_token_soup_ends_well(tokens: list[str], inside: bool) -> None:
    text = " ".join(tokens)
    attempt(entry(text) if inside else HEAD + text + "\n")


@st.composite
def mutated(draw: st.DrawFn) -> str:
    """A kernel's text with a few places cut out, doubled, swapped for a token, or changed in one character."""
    text = draw(st.sampled_from(FRAGMENTS))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(text) - 1))
        length = draw(st.integers(0, 40))
        piece = text[at : at + length]
        kind = draw(st.sampled_from(["cut", "double", "token", "character", "move"]))
        inserted = {
            "cut": "",
            "double": piece + piece,
            "token": f" {draw(st.sampled_from(SOUP))} ",
            "character": chr(draw(st.integers(9, 126))) + piece[1:],
            "move": "",
        }[kind]
        text = text[:at] + inserted + text[at + length :]
        if kind == "move":
            to = draw(st.integers(0, len(text) - 1))
            text = text[:to] + piece + text[to:]
    return text


@given(text=mutated())
def test_a_mutated_kernel_ends_well(text: str) -> None:
    attempt(text)


@pytest.mark.parametrize(
    "access", ["atom.global.add.u32 %r4, [%d1], %r2;", "ld.global.u32 %r4, [%d1];", "red.global.add.u32 [%d1], %r2;"]
)
def test_unwritten_bits_and_no_memory_at_all(access: str) -> None:
    """A launch without any buffer, and an operand that nobody wrote: the access is a fault, as with memory."""
    body = f"ld.param.u64 %d1, [p]; shfl.sync.idx.b32 %r2, %r1, 0, 31, -1; setp.ne.u32 %p1, %r2, 3; {access} ret;"
    with pytest.raises(RefsimError) as caught:
        ptx.load(entry(body)).launch("k", (1,), (64,), [np.uint64(0)], checks=CHECKS)
    assert caught.value.exit_code == 1


def test_an_unmutated_fragment_runs_or_faults_at_its_null_arguments() -> None:
    """The mutations above start from texts that load."""
    assert FRAGMENTS
    assert {attempt(text) for text in FRAGMENTS} <= {"ran", "out-of-bounds", "misaligned", "timeout"}
