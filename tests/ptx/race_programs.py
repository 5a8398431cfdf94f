"""Small programs of single statements, as PTX, and what the simulator says and does when it runs one."""

from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from hypothesis import strategies as st

from refsim import ptx
from refsim.ptx.machine.watchers import MemoryWatchers
from refsim.testing.kernel_files import load_kernel_file

definition = load_kernel_file(Path(__file__).parent / "race_definition.py")
Chunk, Op, Thread = definition.Chunk, definition.Op, definition.Thread

THREADS = 64
WORDS = 2
SCOPES = ("gpu", "gpu", "cta")
HEAD = """.version 9.0
.target sm_90a
.address_size 64
.visible .entry k(.param .u64 words, .param .u64 out) {
.reg .b32 %r<200>; .reg .b32 %w; .reg .b64 %d<8>; .reg .pred %p<400>; .shared .align 16 .b8 tile[64];
ld.param.u64 %d1, [words]; ld.param.u64 %d2, [out]; mov.u32 %r1, %tid.x; mov.u32 %r2, %ctaid.x;
mad.lo.u32 %r3, %r2, 64, %r1; mul.wide.u32 %d3, %r3, 4; add.s64 %d2, %d2, %d3; mov.u32 %r4, tile; mov.u32 %r5, 0;
setp.lt.u32 %p0, %r1, 3; shl.b32 %r6, %r1, 2; add.u32 %r6, %r6, %r4; @%p0 st.shared.u32 [%r6], 0; bar.sync 0;
mov.u32 %w, 0;"""


def text(op, number):
    """The statement; its result goes to a register of its own, which counts if somebody uses it."""
    where = f"[%d1+{4 * op.word}]" if op.space == "global" else f"[%r4+{4 * op.word}]"
    result, modifiers = f"%r{10 + number}", "" if op.order == "weak" else f".{op.order}.{op.scope}"
    if op.order == "volatile":
        modifiers = ".volatile"
    value = "%r9" if op.is_own else op.value
    match op.kind:
        case "ld":
            return f"ld{modifiers}.{op.space}.u32 {result}, {where};"
        case "st":
            return f"st{modifiers}.{op.space}.u32 {where}, {value};"
        case "red":
            return f"red{modifiers}.{op.space}.add.u32 {where}, {value};"
        case "add" | "exch":
            type_ = "u32" if op.kind == "add" else "b32"
            return f"atom{modifiers}.{op.space}.{op.kind}.{type_} {result}, {where}, {value};"
        case "cas":
            return f"atom{modifiers}.{op.space}.cas.b32 {result}, {where}, {op.expected}, {value};"
        case "fence":
            return f"fence.{op.order}.{op.scope};"
        case "bar":
            return "bar.sync 0;"
    return "bar.warp.sync 3;"


def source(chunks, threads):
    """The program as PTX, and the chunk of each line."""
    lines, chunk_of = HEAD.split("\n"), {}
    for bit, (block, thread) in enumerate(threads):
        p = 2 * bit + 1
        lines.append(f"setp.eq.u32 %p{p}, %r3, {block * THREADS + thread}; @%p{p} or.b32 %w, %w, {1 << bit};")
    for number, chunk in enumerate(chunks):
        p = 20 + number
        if chunk.op.kind == "bar":
            lines.append(f"setp.ne.u32 %p{p}, %r2, {chunk.threads[0][0]};")
        elif chunk.op.kind == "warp":
            lines.append(f"setp.ge.u32 %p{p}, %r1, 2; setp.ne.or.u32 %p{p}, %r2, {chunk.threads[0][0]}, %p{p};")
        else:
            mask = sum(1 << threads.index(thread) for thread in chunk.threads)
            lines.append(f"and.b32 %r7, %w, {mask}; setp.eq.u32 %p{p}, %r7, 0;")
        lines.append(f"@%p{p} bra L{number};")
        if chunk.op.is_own:
            lines.append(f"and.b32 %r9, %r1, 1; xor.b32 %r9, %r9, {chunk.op.value};")
        chunk_of[len(lines) + 1] = number
        lines.append(text(chunk.op, number))
        if chunk.op.returns:
            lines.append(f"xor.b32 %r5, %r5, %r{10 + number};")
        lines.append(f"L{number}:")
    return "\n".join([*lines, "st.global.u32 [%d2], %r5;", "ret;", "}", ""]), chunk_of


class Recorder:
    """Notes which lanes made an access by which line, in order."""

    def __init__(self):
        self.seen = []

    def before(self, access):
        pass

    def after(self, access):
        self.seen.append((access.statement.line, access.threads.ids.tolist()))


@contextmanager
def recorded():
    """Every launch shows its accesses to a recorder."""
    recorder, observers = Recorder(), MemoryWatchers.observers

    def both(watchers, machine):
        found = observers(watchers, machine)
        return {name: [*found.get(name, ()), recorder] for name in ("shared", "global")}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MemoryWatchers, "observers", both)
        yield recorder


def runs(chunks, threads, schedules):
    """For each schedule the races that the simulator reports, and the order of the accesses."""
    code, chunk_of = source(chunks, threads)
    blocks, program = 1 + max(block for block, _ in threads), ptx.load(code)
    for policy, seed in schedules:
        words, out = np.zeros(16, np.uint32), np.zeros(blocks * THREADS, np.uint32)
        with recorded() as recorder:
            trace = program.launch(
                "k", (blocks,), (THREADS,), [words, out], policy=policy, seed=seed, checks=ptx.Checks(races="record")
            )
        order = [
            (chunk_of[line], [divmod(lane, THREADS) for lane in lanes])
            for line, lanes in recorder.seen
            if line in chunk_of
        ]
        yield [*trace.findings, *trace.warnings], order


CANDIDATES = [(0, 0), (0, 1), (0, 32), (1, 0), (1, 1)]
ORDERS = {
    "ld": ("weak", "relaxed", "acquire", "volatile"),
    "st": ("weak", "weak", "relaxed", "release", "volatile"),
    "red": ("relaxed", "release"),
    "fence": ("acq_rel", "sc"),
    **dict.fromkeys(("add", "exch", "cas"), ("relaxed", "acquire", "release", "acq_rel")),
}
KINDS = (
    "ld",
    "ld",
    "st",
    "st",
    "st",
    "add",
    "exch",
    "cas",
    "red",
    "fence",
    "fence",
    "bar",
    "warp",
    "publish",
    "take",
    "pass",
)


@dataclass(frozen=True)
class Frame:
    """What statements may name: threads, spaces, words. Where it is tidy, weak accesses are to word 0 and strong ones are not:
    else too little is ordered for much to be right."""

    threads: list[Thread]
    spaces: tuple[str, ...]
    words: int
    is_tidy: bool

    def word(self, draw, order):
        if not self.is_tidy:
            return draw(st.integers(0, self.words - 1))
        return 0 if order == "weak" else draw(st.integers(1, self.words))


@st.composite
def statements(draw, kind, frame):
    """One statement by some of the threads; a barrier by all of its block, or of its warp."""
    most = draw(st.sampled_from([1, 1, 1, 4]))
    who = tuple(sorted(draw(st.lists(st.sampled_from(frame.threads), min_size=1, max_size=most, unique=True))))
    if kind in ("bar", "warp"):
        members = tuple(one for one in frame.threads if one[0] == who[0][0] and (kind == "bar" or one[1] < 2))
        return [Chunk(members, Op(kind))] if members else []
    order, scope = draw(st.sampled_from(ORDERS[kind])), draw(st.sampled_from(SCOPES))
    if kind == "fence":
        return [Chunk(who, Op(kind, order, scope))]
    op = Op(
        kind,
        order,
        "sys" if order == "volatile" else scope,
        draw(st.sampled_from(frame.spaces)),
        frame.word(draw, order),
        draw(st.integers(0, 2)),
        draw(st.integers(0, 1)),
        draw(st.sampled_from([True, True, False])),
        len(who) > 1 and kind != "ld" and draw(st.booleans()),
    )
    return [Chunk(who, op)]


@st.composite
def handovers(draw, kind, frame):
    """A strong write with a release, a strong read with an acquire, or an update with both, by one thread."""
    who, scope, fenced = (draw(st.sampled_from(frame.threads)),), draw(st.sampled_from(SCOPES)), draw(st.booleans())
    where = {"space": draw(st.sampled_from(frame.spaces)), "word": frame.word(draw, "strong")}
    if kind == "pass":
        return [Chunk(who, Op(draw(st.sampled_from(["add", "exch"])), "acq_rel", scope, **where, value=1))]
    fence = Chunk(who, Op("fence", draw(st.sampled_from(ORDERS["fence"])), scope))
    if kind == "publish":
        verb, order = draw(st.sampled_from(["st", "st", "red", "exch"])), "relaxed" if fenced else "release"
        return [fence] * fenced + [Chunk(who, Op(verb, order, scope, **where, value=draw(st.integers(0, 2))))]
    verb, order = draw(st.sampled_from(["ld", "ld", "add", "cas"])), "relaxed" if fenced else "acquire"
    return [Chunk(who, Op(verb, order, scope, **where))] + [fence] * fenced


@st.composite
def programs(draw):
    """Two to four threads of one or two blocks, and their statements in one order; random schedules have others."""
    threads = sorted(draw(st.lists(st.sampled_from(CANDIDATES), min_size=2, max_size=4, unique=True)))
    spaces = draw(st.sampled_from((("global",), ("global", "shared"))))
    frame, chunks = Frame(threads, spaces, draw(st.integers(1, WORDS)), draw(st.booleans())), []
    for kind in draw(st.lists(st.sampled_from(KINDS), min_size=2, max_size=10)):
        made = handovers if kind in ("publish", "take", "pass") else statements
        chunks += draw(made(kind, frame))
    return threads, chunks
