"""Video instructions against a definition that takes one number at a time, with drawn opcodes, selectors and words."""

import random
import subprocess
from pathlib import Path

import numpy as np
import pytest

from refsim import ptx
from refsim.errors import RefsimError
from refsim.reference.assembler import releases

HEAD = """.version 9.0
.target sm_75
.address_size 64
.visible .entry k(.param .u64 x, .param .u64 out) {
    .reg .b64 %x, %o, %t; .reg .b32 %i, %a, %b, %c, %d;
    ld.param.u64 %x, [x]; ld.param.u64 %o, [out]; mov.u32 %i, %tid.x;
    mul.wide.u32 %t, %i, 12; add.s64 %x, %x, %t; mul.wide.u32 %t, %i, 4; add.s64 %o, %o, %t;
    ld.global.u32 %a, [%x]; ld.global.u32 %b, [%x+4]; ld.global.u32 %c, [%x+8];
"""
COUNT, THREADS = 300, 8
EDGES = (0, 1, 0x7F, 0x80, 0xFFFF, 0x8000, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 31, 32, 33, 0x00FF7F80)
TESTS = {"eq": "__eq__", "ne": "__ne__", "lt": "__lt__", "le": "__le__", "gt": "__gt__", "ge": "__ge__"}


def kernel(statements: list[str]) -> str:
    stores = (f"{each} st.global.u32 [%o+{4 * THREADS * at}], %d;" for at, each in enumerate(statements))
    return HEAD + "\n".join(stores) + "\nret; }\n"


def signed(value: int, bits: int, type: str) -> int:
    value &= (1 << bits) - 1
    return value - (1 << bits) if type == "s32" and value >> bits - 1 else value


def part(word: int, selector: str, type: str) -> int:
    bits = {"b": 8, "h": 16}[selector[0]] if selector else 32
    return signed(word >> bits * int(selector[1:] or 0), bits, type)


def limited(value: int, bits: int, type: str) -> int:
    most = (1 << bits - (type == "s32")) - 1
    return max(min(value, most), -most - 1 if type == "s32" else 0)


def simple(name: str, a: int, b: int) -> int:
    if name == "avrg":
        return (a + b + 1) // 2 if a + b >= 0 else (a + b) // 2
    return {"add": a + b, "sub": a - b, "absdiff": abs(a - b), "min": min(a, b), "max": max(a, b)}[name]


def replaced(word: int, value: int, bits: int, place: int) -> int:
    mask = (1 << bits) - 1
    return word & ~(mask << bits * place) | (value & mask) << bits * place


class Drawn:
    """One statement, and the result that the ISA's pseudocode gives for words a, b and c."""

    def __init__(self, draw: random.Random) -> None:
        self.draw = draw
        self.to, self.of_a, self.of_b = (
            draw.choice(["u32", "s32"]),
            draw.choice(["u32", "s32"]),
            draw.choice(["u32", "s32"]),
        )
        self.text, self.result = draw.choice([self.scalar, self.compared, self.mad, self.simd, self.simd])()

    def selector(self) -> str:
        return self.draw.choice(["", "", "b0", "b1", "b2", "b3", "h0", "h1"])

    def end(self, bits: int, type: str):
        """The end of a scalar statement, and what it makes of a number."""
        kind, at = self.draw.choice(["", "c", "part", "second"]), self.draw.choice(["b0", "b2", "b3", "h0", "h1"])
        second = self.draw.choice(["add", "min", "max"])
        size = {"b": 8, "h": 16}[at[0]]

        def finish(value: int, c: int) -> int:
            if kind == "second":
                value = simple(second, value, signed(c, 32, type))
            return replaced(c, value, size, int(at[1])) if kind == "part" else value

        return (
            f".{second}" if kind == "second" else "",
            f".{at}" if kind == "part" else "",
            ", %c" if kind else "",
            size if kind == "part" else 32,
            finish,
        )

    def scalar(self):
        name, sat = self.draw.choice(["add", "sub", "absdiff", "min", "max", "shl", "shr"]), self.draw.random() < 0.5
        asel, bsel, mode = self.selector(), self.selector(), self.draw.choice(["clamp", "wrap"])
        shifts = name in ("shl", "shr")
        of_b = "u32" if shifts else self.of_b
        second, at, c_text, bits, finish = self.end(32, self.to)

        def result(a: int, b: int, c: int) -> int:
            x, y = part(a, asel, self.of_a), part(b, bsel, of_b)
            if shifts:
                y = y % 32 if mode == "wrap" else min(y, 32)
                value = x * 2**y if name == "shl" else x // 2**y
            else:
                value = simple(name, x, y)
            return finish(limited(value, bits, self.to) if sat else value, c)

        opcode = f"v{name}.{self.to}.{self.of_a}.{of_b}{'.sat' * sat}{f'.{mode}' * shifts}{second}"
        return f"{opcode} %d{at}, %a{f'.{asel}' * bool(asel)}, %b{f'.{bsel}' * bool(bsel)}{c_text};", result

    def compared(self):
        test, asel, bsel = self.draw.choice(list(TESTS)), self.selector(), self.selector()
        second, at, c_text, _, finish = self.end(32, "u32")

        def result(a: int, b: int, c: int) -> int:
            return finish(int(getattr(part(a, asel, self.of_a), TESTS[test])(part(b, bsel, self.of_b))), c)

        opcode = f"vset.{self.of_a}.{self.of_b}.{test}{second}"
        return f"{opcode} %d{at}, %a{f'.{asel}' * bool(asel)}, %b{f'.{bsel}' * bool(bsel)}{c_text};", result

    def mad(self):
        asel, bsel, sat = self.selector(), self.selector(), self.draw.random() < 0.5
        signs = self.draw.choice(["", "", "a", "b", "ab", "c", "po"])
        shift = self.draw.choice([0, 7, 15])
        minus = (signs in ("a", "b"), signs == "c")
        final = "s32" if "s32" in (self.of_a, self.of_b) or any(minus) else "u32"

        def result(a: int, b: int, c: int) -> int:
            product, added = part(a, asel, self.of_a) * part(b, bsel, self.of_b), signed(c, 32, final)
            value = (-product if minus[0] else product) + (-added if minus[1] else added) + (signs == "po")
            value //= 2**shift
            return limited(value, 32, final) if sat else value

        a, b, c = (
            f"{'-' * (letter in signs and signs != 'po')}%{letter}{f'.{selector}' * bool(selector)}"
            for letter, selector in (("a", asel), ("b", bsel), ("c", ""))
        )
        opcode = f"vmad.{self.to}.{self.of_a}.{self.of_b}{'.po' * (signs == 'po')}{'.sat' * sat}{f'.shr{shift}' * bool(shift)}"
        return f"{opcode} %d, {a}, {b}, {c};", result

    def simd(self):
        name, count = self.draw.choice(["add", "sub", "avrg", "absdiff", "min", "max", "set"]), self.draw.choice([2, 4])
        bits, letter = 32 // count, "h" if count == 2 else "b"
        last, test = (
            self.draw.choice(["", ".add"] if name == "set" else ["", ".sat", ".add"]),
            self.draw.choice(list(TESTS)),
        )
        chosen = [self.draw.choices(range(2 * count), k=count) if self.draw.random() < 0.5 else None for _ in "ab"]
        written = sorted(self.draw.sample(range(count), self.draw.randint(1, count)))

        def result(a: int, b: int, c: int) -> int:
            found = []
            for which, type, default in ((0, self.of_a, 0), (1, self.of_b, count)):
                places = chosen[which] or list(range(default, default + count))
                words = b << 32 | a
                found.append([signed(words >> bits * place, bits, type) for place in places])
            whole = c
            for place in written:
                x, y = found[0][place], found[1][place]
                value = int(getattr(x, TESTS[test])(y)) if name == "set" else simple(name, x, y)
                value = limited(value, bits, self.to) if last == ".sat" else value
                whole = whole + value if last == ".add" else replaced(whole, value, bits, place)
            return whole

        a, b = (
            f"%{which}" + (f".{letter}" + "".join(map(str, reversed(places))) if places else "")
            for which, places in zip("ab", chosen, strict=True)
        )
        to = "%d" if len(written) == count else f"%d.{letter}" + "".join(map(str, reversed(written)))
        types = f"{self.of_a}.{self.of_b}.{test}" if name == "set" else f"{self.to}.{self.of_a}.{self.of_b}"
        return f"v{name}{count}.{types}{last} {to}, {a}, {b}, %c;", result


@pytest.mark.parametrize("seed", range(3))
def test_drawn_statements_give_what_the_definition_says(seed: int, tmp_path: Path) -> None:
    """ptxas must take every statement that is drawn."""
    draw = random.Random(seed)
    drawn = [Drawn(draw) for _ in range(COUNT)]
    text = kernel([each.text for each in drawn])
    (tmp_path / "video.ptx").write_text(text)
    command = [releases()[-1][1], "-arch", "sm_75", str(tmp_path / "video.ptx"), "-o", str(tmp_path / "out.cubin")]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr[:600]
    words = np.array(
        [
            [draw.choice(EDGES) if draw.random() < 0.6 else draw.getrandbits(32) for _ in range(3)]
            for _ in range(THREADS)
        ],
        np.uint32,
    )
    out = np.zeros(COUNT * THREADS, np.uint32)
    ptx.load(text).launch("k", 1, THREADS, [words, out])
    wrong = [
        (each.text, thread, hex(got), hex(want))
        for each, row in zip(drawn, out.reshape(COUNT, THREADS).tolist(), strict=True)
        for thread, got in enumerate(row)
        if got != (want := each.result(*words[thread].tolist()) & 0xFFFFFFFF)
    ]
    assert wrong == []


WRONG = {
    "vshr.u32.u32.s32.clamp %d, %a, %b;": "unknown-instruction",
    "vshr.u32.u32.u32 %d, %a, %b;": "unknown-instruction",
    "vadd.s32.s32.s32 %d.b1, %a, %b;": "malformed-ptx",
    "vadd.s32.s32.s32.add %d, %a, %b;": "malformed-ptx",
    "vadd.s32.s32.s32 %d, %a.b4, %b;": "malformed-ptx",
    "vadd2.s32.s32.s32 %d, %a.b0, %b, %c;": "malformed-ptx",
    "vadd4.s32.s32.s32.sat.add %d, %a, %b, %c;": "unknown-instruction",
    "vadd.s32.s32.s32 %d, -%a, %b;": "malformed-ptx",
    "add.s32 %d, %a.b0, %b;": "malformed-ptx",
}


@pytest.mark.parametrize("statement", WRONG)
def test_a_statement_that_ptxas_refuses_is_refused(statement: str, tmp_path: Path) -> None:
    text = kernel([statement])
    (tmp_path / "video.ptx").write_text(text)
    command = [releases()[-1][1], "-arch", "sm_75", str(tmp_path / "video.ptx"), "-o", str(tmp_path / "out.cubin")]
    assert subprocess.run(command, capture_output=True, check=False).returncode
    with pytest.raises(RefsimError) as caught:
        ptx.load(text).code("k")
    assert caught.value.code == WRONG[statement]


def test_constants_and_a_register_are_one_statement() -> None:
    """Two constants are one word for all threads, c is a word for each."""
    out, words = np.zeros(COUNT * THREADS, np.uint32), np.arange(3 * THREADS, dtype=np.uint32)
    text = kernel(["vadd2.u32.u32.u32.add %d, 5, 0x70000, %c;", "vmin4.u32.u32.u32 %d, %a, 3, 0;"])
    ptx.load(text).launch("k", (1,), (THREADS,), [words, out])
    assert (out[:THREADS] == words[2::3] + 12).all()
    assert (out[THREADS : 2 * THREADS] == np.minimum(words[::3], 3)).all()
