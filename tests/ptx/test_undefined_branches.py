"""Branches on undefined bits: a note where they decide only registers that nothing reads, a finding where anything may differ."""

import random
from pathlib import Path

import numpy as np
import pytest

from refsim import ptx
from refsim.errors import RefsimError
from refsim.testing.kernel_files import load_kernel_file

kernels = load_kernel_file(Path(__file__).parent / "undefined_kernels.py")
run, marked = kernels.run, kernels.marked

READ = "ld.shared.u32 %r10, [%r4];  // A\nsetp.gt.u32 %p4, %r10, 9; mov.u32 %r11, 1;\n"
DROPPED = "st.global.u32 [%d3], %r5;"
ARMS = {
    "one arm": "@%p4 bra END;  // C\nadd.u32 %r11, %r1, 2;\nEND:",
    "two arms": "@%p4 bra ELSE;  // C\nadd.u32 %r11, %r1, 2; bra END; ELSE: add.u32 %r11, %r1, 3;\nEND:",
    "an arm elsewhere": "bra START; FAR: mov.u32 %r11, 7; bra.uni END; START:\n@%p4 bra FAR;  // C\nEND:",
    "an arm within an arm": "@%p4 bra END;  // C\nsetp.gt.u32 %p5, %r1, 3; @%p5 bra IN; add.u32 %r11, %r1, 2; IN:\nEND:",
    "arms of arms": "@%p4 bra END;  // C\nsetp.gt.u32 %p5, %r10, 3; @%p5 bra IN; mov.u32 %r11, 5; IN:\nEND:",
    "a loop in an arm": "@%p4 bra END;  // C\nmov.u32 %r12, 0; TURN: add.u32 %r11, %r11, %r12; add.u32 %r12, %r12, 1;"
    " setp.lt.u32 %p5, %r12, 4; @%p5 bra TURN;\nEND:",
    "a loop as long as is defined": "mov.u32 %r13, 3;\n@%p4 bra END;  // C\nmov.u32 %r12, 0; TURN: add.u32 %r11, %r11, %r10;"
    " add.u32 %r12, %r12, 1; setp.lt.u32 %p5, %r12, %r13; @%p5 bra TURN;\nEND:",
    "a load in an arm": "@%p4 bra END;  // C\nld.global.u32 %r11, [%d5];\nEND:",
    "a branch in a loop": "mov.u32 %r12, 0; TURN:\n@%p4 bra NEXT;  // C\nadd.u32 %r11, %r11, %r12; NEXT: add.u32 %r12, %r12, 1;"
    " setp.lt.u32 %p5, %r12, 4; @%p5 bra TURN;",
    "local memory": "st.local.u32 [own], 1;\n@%p4 bra END;  // C\nst.local.u32 [own], 2;\nEND: ld.local.u32 %r11, [own];",
    "local memory beside registers": "st.local.u32 [own], 1;\n@%p4 bra END;  // C\n"
    "add.u32 %r12, %r1, 2; st.local.u32 [own], %r12;\nEND: ld.local.u32 %r11, [own];",
    "a guarded write": "@%p4 bra END;  // C\n@%p1 mov.u32 %r11, 2;\nEND:",
    "a predicate": "setp.eq.u32 %p5, %r1, %r1;\n@%p4 bra END;  // C\nsetp.ne.u32 %p5, %r1, %r1;\nEND: selp.b32 %r11, 1, 2, %p5;",
}


@pytest.mark.parametrize("policy", ptx.POLICIES)
@pytest.mark.parametrize("name", ARMS)
def test_what_a_branch_decides_is_undefined_and_no_more(name: str, policy: str) -> None:
    """Nothing that the arms write is stored: a note. It is stored: a finding at the read, which names store and branch."""
    _, trace = run(f"{READ}{ARMS[name]}\n{DROPPED}", policy=policy)
    assert trace.findings == ()
    assert [note.code for note in trace.notes] == ["uninitialised-unused"]
    assert "they reached no output, address or decision but branches that change only registers" in trace.notes[0].what
    text = f"{READ}{ARMS[name]}\n{kernels.PUT}"
    with pytest.raises(RefsimError) as caught:
        run(text, policy=policy)
    assert caught.value.code == "uninitialised"
    assert f"({marked(text, 'A')})" in caught.value.where
    for letter, words in (("B", "they reached an output"), ("C", "through a branch")):
        assert f"({marked(text, letter)})" in caught.value.what
        assert words in caught.value.what


def test_lanes_whose_guard_is_defined_keep_their_registers() -> None:
    """Lanes 0 to 15 have read what they wrote."""
    read = "@%p1 st.shared.u32 [%r4], %r1;\n" + READ
    out, trace = run(f"{read}{ARMS['one arm']}\n@%p1 st.global.u32 [%d3], %r11;")
    assert trace.findings == ()
    assert out[: 4 * 16 : 4].tolist() == [lane + 2 for lane in range(10)] + [1] * 6
    with pytest.raises(RefsimError, match="through a branch"):
        run(f"{read}setp.lt.u32 %p1, %r1, 17;\n{ARMS['one arm']}\n@%p1 st.global.u32 [%d3], %r11;")


@pytest.mark.parametrize("policy", ptx.POLICIES)
@pytest.mark.parametrize("stored", [0, 1])
def test_lanes_that_come_to_the_end_later_hold_undefined_bits_too(stored: int, policy: str) -> None:
    """The guard splits even and odd lanes. Even lanes go to an arm that stands behind the end; one of the two stores."""
    split = "xor.b32 %r10, %r10, %r1; and.b32 %r10, %r10, 1; setp.eq.u32 %p4, %r10, 0;\n"
    some = f"and.b32 %r12, %r1, 1; setp.eq.u32 %p1, %r12, {stored};\n@%p4 bra FAR;  // C\n"
    far = "bra.uni DONE; FAR: add.u32 %r11, %r1, 7; bra.uni END; DONE:"
    with pytest.raises(RefsimError, match="through a branch"):
        run(f"{READ}{split}{some}END: @%p1 {kernels.PUT}\n{far}", policy=policy)


EFFECTS = {
    "a store": "st.shared.u32 [%r4], 1;",
    "a store to global memory": "st.global.u32 [%d3], 1;",
    "a store in the second block of an arm": "add.u32 %r11, %r11, 1; bra IN; IN: st.shared.u32 [%r4], 1;",
    "an atomic": "red.shared.add.u32 [%r4+4], 1;",
    "a barrier": "bar.sync 0;",
    "a vote": "vote.sync.any.pred %p6, %p1, 1;",
    "a fence": "membar.cta;",
    "a volatile load": "ld.volatile.global.u32 %r12, [%d5];",
    "the active lanes": "activemask.b32 %r12;",
    "a copy": "cp.async.ca.shared.global [%r4], [%d5], 16;",
    "an exit": "exit;",
    "a trap": "trap;",
    "an mbarrier": "mbarrier.init.shared.b64 [%r4+1024], 1;",
    "an endless loop": "HERE: bra HERE;",
    "a loop that undefined bits end": "HERE: shr.u32 %r10, %r10, 1; setp.ne.u32 %p5, %r10, 0; @%p5 bra HERE;",
    "a loop that a product of undefined bits ends": "mul.lo.u32 %r12, %r10, 3; mov.u32 %r13, 0; HERE: add.u32 %r13, %r13, 1;"
    " min.u32 %r12, %r12, 3; setp.lt.u32 %p5, %r13, %r12; @%p5 bra HERE;",
    "a loop that a load ends": "HERE: ld.shared.u32 %r12, [%r4+4]; setp.eq.u32 %p5, %r12, 0; @%p5 bra HERE;",
    "a generic store to local memory": "cvta.local.u64 %d8, 0; st.u32 [%d8], 1;",
}


@pytest.mark.parametrize("name", EFFECTS)
def test_a_branch_around_an_effect_is_a_finding(name: str) -> None:
    """Whichever arm has it, and whether or not it runs."""
    for guard in ("@%p4", "@!%p4"):
        text = f"{READ}{guard} bra END;  // B\n{EFFECTS[name]}\nEND:\n{DROPPED}"
        with pytest.raises(RefsimError) as caught:
            run(text)
        assert caught.value.code == "uninitialised"
        assert "they reached a branch: bra" in caught.value.what
        assert f"({marked(text, 'B')})" in caught.value.what


@pytest.mark.parametrize(
    "body",
    [
        "and.b32 %r12, %r10, 3; TURN: add.u32 %r11, %r11, 1; setp.lt.u32 %p5, %r11, %r12;\n@%p5 bra TURN;  // B\n",
        "mov.u32 %r12, 0; TURN:\n@%p4 bra END;  // B\nadd.u32 %r12, %r12, 1; setp.lt.u32 %p5, %r12, 4; @%p5 bra TURN;\nEND:\n",
    ],
)
def test_a_branch_that_decides_how_often_it_is_met_is_a_finding(body: str) -> None:
    """Both loops end after four turns at most, which is not looked at."""
    with pytest.raises(RefsimError, match="they reached a branch"):
        run(READ + body + DROPPED)


# ---- drawn programs, judged by all values of what is undefined
WORDS = 8  # values of the undefined word: its other bits are cleared
OPERATIONS = ("add.u32", "sub.u32", "xor.b32", "and.b32", "or.b32", "mul.lo.u32")


class Drawn:
    """A program of nested branches over five registers; the first of them is the undefined word."""

    def __init__(self, seed: int) -> None:
        self.random, self.labels = random.Random(seed), 0
        self.stored = self.random.sample(range(21, 26), 2)

    def register(self) -> str:
        return f"%r{self.random.randrange(20, 26)}"

    def statement(self) -> str:
        source = self.random.choice((self.register(), str(self.random.randrange(4))))
        what = self.random.random()
        guard = "" if what < 0.85 else f"{self.test(5)} @%p5 "
        if what < 0.3:
            return f"{guard}mov.u32 {self.register()}, {self.random.randrange(3)};"
        return f"{guard}{self.random.choice(OPERATIONS)} {self.register()}, {self.register()}, {source};"

    def test(self, predicate: int) -> str:
        tested = self.random.choice((self.register(), "%r20"))
        return f"setp.{self.random.choice(('eq', 'ne', 'lt'))}.u32 %p{predicate}, {tested}, {self.random.randrange(5)};"

    def block(self, depth: int) -> str:
        lines = [self.statement() for _ in range(self.random.randrange(1, 4))]
        while depth and self.random.random() < (0.4 if depth == 1 else 0.6):
            self.labels += 1
            other, end = f"ELSE{self.labels}", f"END{self.labels}"
            test = f"{self.test(4)} @{self.random.choice(('', '!'))}%p4 bra"
            match self.random.randrange(5):
                case 0:
                    lines.append(f"{test} {end}; {self.block(depth - 1)} {end}:")
                case 1:
                    lines.append(
                        f"{test} {other}; {self.block(depth - 1)} bra {end}; {other}: {self.block(depth - 1)} {end}:"
                    )
                case 2:
                    counter = f"%r{30 + depth}"
                    lines.append(
                        f"mov.u32 {counter}, 0; {other}: {self.block(depth - 1)} add.u32 {counter}, {counter}, 1;"
                        f" setp.lt.u32 %p4, {counter}, 2; @%p4 bra {other};"
                    )
                case 3:
                    lines.append(f"{test} {end}; st.shared.u32 [%r4+4], {self.register()}; {self.block(0)} {end}:")
                case 4:
                    lines.append(
                        f"{test} {other}; {self.block(0)} {test} {end}; {other}: {self.block(depth - 1)} {end}:"
                    )
            lines.append(self.statement())
        return " ".join(lines)

    def text(self, *, is_written: bool) -> str:
        """`is_written`: the undefined word of lanes 16 to 31 is the input's; else nobody writes it."""
        values = " ".join(f"mov.u32 %r{20 + place}, {place};" for place in range(1, 6))
        fill = "ld.global.u32 %r12, [%d5]; " + ("" if is_written else "@%p1 ") + "st.shared.u32 [%r4], %r12;"
        stores = " ".join(f"st.global.u32 [%d3+{4 * n}], %r{each};" for n, each in enumerate(self.stored))
        read = "st.shared.u32 [%r4+4], 0; ld.shared.u32 %r20, [%r4]; and.b32 %r20, %r20, 7;"
        rest = "ld.shared.u32 %r13, [%r4+4]; st.global.u32 [%d3+8], %r13;"
        return f"{fill} {read} {values} {self.block(2)} {stores} {rest}"


def launched(body: str, value: int) -> bytes:
    """The output. The words of lanes 0 to 15 are numbers from 0 to 7, those of the other lanes `value`."""
    memory, out = ptx.GlobalMemory(), np.zeros(4 * 64, np.uint32)
    given = np.arange(256, dtype=np.uint32) // 4 % WORDS
    given[64:] = value
    arguments = [out, given, np.uint64(memory.allocate(4096, "work"))]
    ptx.load(f"{kernels.HEAD}{body} ret; }}").launch("k", (1,), (32,), arguments, memory=memory)
    return out.tobytes()


def judged(seed: int) -> tuple[bool, bool]:
    """Whether the values of the undefined words change the output, and whether the simulator finds that they may."""
    program = Drawn(seed).text(is_written=False)
    written = Drawn(seed).text(is_written=True)
    outputs = {launched(written, value) for value in range(WORDS)}
    try:
        launched(program, 0)
    except RefsimError as error:
        assert error.code == "uninitialised", (seed, error)
        return len(outputs) > 1, True
    return len(outputs) > 1, False


def test_no_drawn_program_differs_without_a_finding(refsim_profile: str) -> None:
    """A miss is an error, a false alarm is not: it comes of arms that write the same, or store what nobody reads."""
    seeds = range({"quick": 40, "ci": 300}.get(refsim_profile, 1500))
    verdicts = [judged(seed) for seed in seeds]
    missed = [seed for seed, (differs, found) in zip(seeds, verdicts, strict=True) if differs and not found]
    assert missed == []
    assert sum(differs for differs, _ in verdicts) >= len(seeds) // 6
    assert sum(not found for _, found in verdicts) >= len(seeds) // 3
    assert sum(found and not differs for differs, found in verdicts) <= len(seeds) // 6


def test_a_loop_that_undefined_bits_end_in_some_lanes_is_a_finding() -> None:
    """No lane enters the arm, but its undefined guard might: half of the lanes wrote the number of turns of the loop."""
    count = "@%p1 st.shared.u32 [%r4+4], 3; ld.shared.u32 %r12, [%r4+4]; mov.u32 %r13, 0; min.u32 %r12, %r12, 3;\n"
    loop = "HERE: add.u32 %r13, %r13, 1; setp.lt.u32 %p5, %r13, %r12; @%p5 bra HERE;\n"
    with pytest.raises(RefsimError, match="they reached a branch"):
        run(f"{READ}{count}@%p4 bra END;\n{loop}END:\n{DROPPED}")
    _, trace = run(f"{READ}{count.replace('@%p1', '')}@%p4 bra END;\n{loop}END:\n{DROPPED}")
    assert trace.findings == ()
