"""ptxas as the judge of which fragments exist: every row assembles from its first target on, and no other combination."""

import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from itertools import product
from pathlib import Path

import pytest

from refsim.errors import RefsimError
from refsim.layouts import fragment, fragments

# Oldest first; ptxas 13.0 has no sm_70, so sm_75 stands in for it.
TARGETS = ("sm_75", "sm_80", "sm_89", "sm_90", "sm_90a", "sm_100a", "sm_120a")
# The rows that a family-specific target has and its successors have not.
ENDS = {"wgmma": "sm_90a", "tcgen05": "sm_100a"}
MMA_SHAPES = [
    "m8n8k4",
    "m8n8k16",
    "m8n8k32",
    "m8n8k128",
    "m16n8k4",
    "m16n8k8",
    "m16n8k16",
    "m16n8k32",
    "m16n8k64",
    "m16n8k128",
    "m16n8k256",
]
MMA_TYPES = {
    "f16": 16,
    "bf16": 16,
    "tf32": 32,
    "f64": 64,
    "e4m3": 8,
    "e5m2": 8,
    "e3m2": 6,
    "e2m3": 6,
    "e2m1": 4,
    "s8": 8,
    "u8": 8,
    "s4": 4,
    "u4": 4,
    "b1": 1,
}


@dataclass(frozen=True)
class Case:
    """One instruction, the first target that should take it ("" for none), and the name that refsim knows it by."""

    name: str
    ptx: str
    since: str


@pytest.fixture(scope="module")
def ptxas() -> str:
    """ptxas on the path or in the nvidia-cuda-nvcc wheel; its absence fails in CI."""
    if found := shutil.which("ptxas"):
        return found
    try:
        files = metadata.files("nvidia-cuda-nvcc") or []
    except metadata.PackageNotFoundError:
        files = []
    for file in files:
        if re.fullmatch(r"ptxas(\.exe)?", file.name):
            return str(file.locate())
    if os.environ.get("CI") == "true":
        pytest.fail("needed in CI: nvidia-cuda-nvcc with ptxas")
    pytest.skip("nvidia-cuda-nvcc is not installed: no ptxas to judge the fragments")


def registers(letter: str, count: int) -> str:
    return "{" + ", ".join(f"{letter}{index}" for index in range(max(1, count))) + "}"


HEAD = ".version 9.0\n.target {target}\n.address_size 64\n.shared .align 128 .b8 tile[4096];\n"
REGISTERS = ".reg .b32 r<256>; .reg .f32 f<256>; .reg .f64 d<32>; .reg .b64 l<4>; .reg .pred p;"


def refused(ptxas: str, folder: Path, target: str, instructions: Sequence[str]) -> dict[int, str]:
    """Index of every instruction that ptxas refuses for a target, with its message.

    ptxas stops after the stage that found an error, so what a stage passed is tried again without the rest.
    """
    messages: dict[int, str] = {}
    source, head = folder / "probe.ptx", HEAD.format(target=target)
    while True:
        left = [index for index in range(len(instructions)) if index not in messages]
        kernels = [f".visible .entry probe{index}() {{ {REGISTERS} {instructions[index]} ret; }}\n" for index in left]
        source.write_text(head + "".join(kernels))
        command = [ptxas, f"-arch={target}", "-O1", "-o", str(folder / "probe.cubin"), str(source)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        found = re.findall(r"line (\d+); error\s*: (.*)", done.stderr)
        assert bool(found) == bool(done.returncode), done.stderr
        if not found:
            return messages
        messages |= {left[int(line) - head.count("\n") - 1]: text for line, text in found}


def mma_ptx(shape: str, type: str, accumulator: str, bits: int | None = None) -> str:
    """mma.sync with the registers that the fragments have, or that the shape would need if the instruction existed."""
    m, n, k = (int(part) for part in re.findall(r"\d+", shape))
    prefix, suffix, scales = f"mma.sync.aligned.{shape}.row.col", "", ""
    match type:
        case "e3m2" | "e2m3":
            prefix += ".kind::f8f6f4"
        case "e2m1" if k <= 32:
            prefix += ".kind::f8f6f4"
        case "e2m1":
            prefix += ".kind::mxf4.block_scale.scale_vec::2X"
            suffix, scales = ".ue8m0", ", r0, {0, 0}, r0, {0, 0}"
        case "b1":
            suffix = ".xor.popc"
    letter = {"f32": "f", "f64": "d"}.get(accumulator, "r")
    stem = f"mma.{shape}.{type}"
    if bits is None:
        a, b = (fragment(f"{stem}.{operand}").registers for operand in "ab")
        d = fragment(f"{stem}.d" if accumulator != "f16" else f"{stem}.d.f16").registers
    else:
        slot = 8 if type in ("e3m2", "e2m3") or (type == "e2m1" and k <= 32) else bits
        a, b, d = (
            rows * cols * width // 32 // max(32, width)
            for rows, cols, width in ((m, k, slot), (k, n, slot), (m, n, 32))
        )
    inputs = "d" if type == "f64" else "r"
    result = registers(letter, d)
    return (
        f"{prefix}.{accumulator}.{type}.{type}.{accumulator}{suffix} "
        f"{result}, {registers(inputs, a)}, {registers(inputs, b)}, {result}{scales};"
    )


def mma_cases() -> list[Case]:
    """Every shape with every type and every accumulator of its kind, legal or not."""
    cases = []
    known = set(fragments("mma"))
    for shape, (type, bits) in product(MMA_SHAPES, MMA_TYPES.items()):
        integer = type in ("s8", "u8", "s4", "u4", "b1")
        for accumulator in ("s32",) if integer else ("f64",) if type == "f64" else ("f32", "f16"):
            name = f"mma.{shape}.{type}.d" + ".f16" * (accumulator == "f16")
            legal = name in known
            ptx = mma_ptx(shape, type, accumulator, None if legal else bits)
            cases.append(Case(name, ptx, fragment(name).since if legal else ""))
    return cases


def scale_cases() -> list[Case]:
    """Every selector of every scale vector, in range or one beyond it."""
    cases = []
    known = {name: fragment(name).since for name in fragments("mma") if ".sf" in name}
    kinds = [
        ("mxf8f6f4", 1, 32, "e4m3", "ue8m0"),
        ("mxf4", 2, 64, "e2m1", "ue8m0"),
        ("mxf4nvf4", 2, 64, "e2m1", "ue8m0"),
        ("mxf4nvf4", 4, 64, "e2m1", "ue4m3"),
    ]
    for (kind, vector, k, type, scale), operand in product(kinds, ("sfa", "sfb")):
        for byte, thread in product(range(5), range(5)):
            selector = f".byte{byte}.thread{thread}" if byte or thread else ""
            name = f"mma.m16n8k{k}.{kind}.{vector}x.{operand}{selector}"
            chosen, other = f"{{{byte}, {thread}}}", "{0, 0}"
            sides = (chosen, other) if operand == "sfa" else (other, chosen)
            ptx = (
                f"mma.sync.aligned.m16n8k{k}.row.col.kind::{kind}.block_scale.scale_vec::{vector}X.f32.{type}.{type}.f32.{scale} "
                f"{registers('f', 4)}, {registers('r', 4)}, {registers('r', 2)}, {registers('f', 4)}, "
                f"r0, {sides[0]}, r1, {sides[1]};"
            )
            cases.append(Case(name, ptx, known.get(name, "")))
    return cases


def wgmma_cases() -> list[Case]:
    """Every multiple of 4 up to 264 as N, and the neighbouring K, of every type, with A in registers."""
    cases = []
    known = set(fragments("wgmma"))
    shapes = [(n, scale) for n in range(4, 268, 4) for scale in (1, 2) if scale == 1 or n == 64]
    of_k = {"f16": 16, "bf16": 16, "tf32": 8, "e4m3": 32, "e5m2": 32, "s8": 32, "u8": 32, "b1": 256}
    for (type, natural), (n, scale) in product(of_k.items(), shapes):
        k = natural * scale
        integer = type in ("s8", "u8", "b1")
        for accumulator in ("s32",) if integer else ("f32", "f16"):
            name = f"wgmma.m64n{n}k{k}.{type}.d" + ".f16" * (accumulator == "f16")
            letter, count = ("f", n // 2) if accumulator == "f32" else ("r", n // (4 if accumulator == "f16" else 2))
            flags = ", 1, 1, 0" if type in ("f16", "bf16") else "" if integer else ", 1, 1"
            operation = ".and.popc" if type == "b1" else ""
            a_name = name.replace(".d.f16", ".a").replace(".d", ".a")
            a = fragment(a_name).registers if a_name in known else 4
            d = fragment(name).registers if name in known else count
            ptx = (
                f"wgmma.mma_async.sync.aligned.m64n{n}k{k}.{accumulator}.{type}.{type}{operation} "
                f"{registers(letter, d)}, {registers('r', a)}, l0, p{flags};"
            )
            cases.append(Case(name, ptx, "sm_90a" if name in known else ""))
    return cases


def matrix_cases() -> list[Case]:
    """Every shape, count, type and transposition of ldmatrix and stmatrix."""
    cases = []
    types = {"b16": ".b16", "b8": ".b8", "b8x16.b6x16_p32": ".b8x16.b6x16_p32", "b8x16.b4x16_p64": ".b8x16.b4x16_p64"}
    for instruction, counts in (("ldmatrix", (1, 2, 4)), ("stmatrix", (1, 2, 4))):
        known = set(fragments(instruction))
        shapes = ("m8n8", "m8n16", "m16n16", "m16n8")
        for shape, count, (type, spelled), trans in product(shapes, counts, types.items(), (False, True)):
            name = f"{instruction}.{shape}.x{count}.{type}" + ".trans" * trans
            held = fragment(name).registers if name in known else count * (2 if shape == "m16n16" else 1)
            stem = f"{instruction}.sync.aligned.{shape}.x{count}{'.trans' * trans}.shared{spelled}"
            operands = (
                f"{registers('r', held)}, [tile]" if instruction == "ldmatrix" else f"[tile], {registers('r', held)}"
            )
            cases.append(Case(name, f"{stem} {operands};", fragment(name).since if name in known else ""))
    return cases


def move_cases() -> list[Case]:
    """Every shape and repeat of tcgen05.ld and tcgen05.st."""
    cases = []
    known = set(fragments("tcgen05"))
    for direction, shape, count in product(
        ("ld", "st"), ("32x32b", "16x64b", "16x128b", "16x256b", "16x32bx2"), (1, 2, 3, 4, 8, 16, 32, 64, 128, 256)
    ):
        name = f"tcgen05.{direction}.{shape}.x{count}"
        per = {"16x128b": 2, "16x256b": 4}.get(shape, 1)
        held = registers("r", fragment(name).registers if name in known else min(256, per * count))
        offset = f", {count}" if shape == "16x32bx2" else ""
        operands = f"{held}, [r0]{offset}" if direction == "ld" else f"[r0]{offset}, {held}"
        ptx = f"tcgen05.{direction}.sync.aligned.{shape}.x{count}.b32 {operands};"
        cases.append(Case(name, ptx, "sm_100a" if name in known else ""))
    return cases


FAMILIES = {
    "mma": mma_cases,
    "mma scales": scale_cases,
    "wgmma": wgmma_cases,
    "ldmatrix": matrix_cases,
    "tcgen05": move_cases,
}


@pytest.mark.parametrize("family", FAMILIES)
def test_ptxas_takes_exactly_the_rows(family: str, ptxas: str, tmp_path: Path) -> None:
    """Per target: every row from its first target on assembles, and what refsim refuses, ptxas refuses."""
    cases = FAMILIES[family]()
    judged = dict.fromkeys(("assembled", "refused"), 0)
    wrong = []
    for target in TARGETS:
        due = [case for case in cases if not late(case, target)]
        messages = refused(ptxas, tmp_path, target, [case.ptx for case in due])
        for index, case in enumerate(due):
            legal = case.since != "" and reached(case.since, target)
            judged["refused" if index in messages else "assembled"] += 1
            if legal == (index in messages):
                wrong.append(f"{target} {case.name}: {messages.get(index, 'assembles')}")
    counts = f"{judged['assembled']} assembled and {judged['refused']} refused"
    print(f"{family}: {len(cases)} instructions, {counts} over {len(TARGETS)} targets")
    assert not wrong, "\n".join(wrong[:20]) + f"\n{len(wrong)} in all"


def reached(since: str, target: str) -> bool:
    """Whether a target has what came with `since`; instructions of sm_90a and sm_100a end with them."""
    first = "sm_75" if since == "sm_70" else since
    return TARGETS.index(first) <= TARGETS.index(target)


def late(case: Case, target: str) -> bool:
    """A target after the last that has the family: nothing to judge."""
    last = ENDS.get(case.name.split(".")[0])
    return last is not None and TARGETS.index(target) > TARGETS.index(last)


@pytest.mark.parametrize("family", FAMILIES)
def test_what_ptxas_refuses_has_a_reason(family: str) -> None:
    """Every combination without a row is refused by name, with the rule that it breaks."""
    for case in FAMILIES[family]():
        if not case.since:
            with pytest.raises(RefsimError) as caught:
                fragment(case.name)
            assert caught.value.code == "illegal-fragment", case.name
            assert caught.value.rule
