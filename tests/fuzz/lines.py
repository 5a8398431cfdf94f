"""Command lines drawn from the program's own grammar, with words that nobody would type."""

import contextlib
import io
import os
import random
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import click
import numpy as np

from refsim.bringup import suites
from refsim.campaigns import bringing_up
from refsim.cli import main
from refsim.cli.names import Name
from refsim.cli.registry import COMMANDS
from refsim.files import save, save_all
from tests.fuzz.readers import PTX_TEXTS

KERNELS = """
from refsim.kernels import Kernel
from refsim.testing import Promise
from refsim.testing.recipes import Tensor

KERNELS = (
    Kernel("copy", lambda p: {"y": p.codes()}, None, lambda l, p: {"y": p.codes()}, {"y": "bf16"}, recipe=Tensor,
           corpus=(Tensor(3, "bf16"),), promise=Promise.BITWISE, call=print),
)
"""
CASE = (
    '{"refsim_case": 1, "kernels": "kern.py", "kernel": "copy", "problem": {"n": 3, "format": "bf16"}, '
    '"device": {}, "finding": ""}'
)
LONGEST_LINE = 2500
PROJECT = '[tool.refsim]\nkernels = ["kern.py"]\n'
SOURCE = 'extern "C" __global__ void k(float *x) { x[threadIdx.x] += 1.0f; }\n'
ODD = (
    *(
        "",
        " ",
        "-",
        "--",
        "---",
        "=",
        ",",
        ":",
        "x",
        "0",
        "-0",
        "-1",
        "1",
        "2",
        "7",
        "17,42",
        "0:4",
        "4:",
        ":",
        "8:2",
        "1x32",
    ),
    *("²", "٣", "１２", "1_0", "0x", "0x1g", "0x7e", "0b101", "0b0_1"),
    *("9" * 30, "9" * 5000, "-" + "9" * 5000, "0x" + "f" * 5000),
    *("1e999", "1e-999", "1e5000", "0x1p4000", "0x1p99999", "nan", "-nan", "inf", "-inf", "infinity"),
    *("1.5", ".5", "5.", "1e", "+1"),
    *(
        "f32:0x3f800000",
        "e4m3:0x7e",
        "f64:1",
        ":1",
        "f32:",
        "x" * 300,
        "x" * 5000,
        "ä" * 300,
        "日本語",
        "\udcff\udc80",
        "a\nb",
    ),
    *(
        "\x1b[31m",
        "\r",
        "\t",
        "'",
        '"',
        "`id`",
        "$(id)",
        "%s%n",
        "{}",
        "{0}",
        "*",
        "?",
        "~",
        "..",
        ".",
        "#",
        "\\",
        "<>",
        "a=b",
    ),
    *(
        "1000000x1000000",
        "999999999999x999999999999",
        "1:999999999",
        "4294967296",
        "18446744073709551616",
        "[-1,2]",
        "1,2,,3",
    ),
    *(
        "sm_80",
        "sm_90a",
        "sm_100a",
        "sm_120a",
        "sm_90",
        "sm_999",
        "sm_x",
        "cuda",
        "cuda:99",
        "sim",
        "sim:lazy",
        "auto",
        "nvcc",
    ),
    *(
        "mma.sync",
        "wgmma",
        "tcgen05.f8f6f4",
        "mfma",
        "bf16",
        "e4m3",
        "e2m1",
        "f16",
        "f32",
        "f64",
        "s8",
        "u32",
        "tf32",
        "e8m0",
    ),
    *(
        "mma.m16n8k16.bf16.a",
        "wgmma.m64n8k16.bf16.d",
        "nvidia_128x4",
        "128B",
        "swizzle<3,4,3>",
        "swizzle<99,99,99>",
        "K",
        "MN",
    ),
    *(
        "k",
        "add",
        "copy",
        "table",
        "tile",
        "arg0",
        "arg0+4:4",
        "0:1-9",
        "u32:5",
        "f32:nan",
        "u64:-1",
        "zeros:f32:16",
        "zeros:u8:0",
    ),
    *(
        "add.s32",
        "cvt.rn.satfinite.e4m3x2.f32",
        "start_address=1024",
        "swizzle=128B",
        "dims=256,64",
        "box=64,64",
        "races",
        "all",
    ),
)
FILES = (
    "k.ptx",
    "c.ptx",
    "k.cu",
    "x.npy",
    "y.npz",
    "z.safetensors",
    "w.bin",
    "codes.txt",
    "case.json",
    "kern.py",
    "absent.npy",
    "pyproject.toml",
)
OUTPUTS = (
    "out.json",
    "out.svg",
    "out.html",
    "out.csv",
    "out.npy",
    "out",
    "no/out.txt",
    "-",
    "/dev/null",
    "/dev/full",
    ".",
    "out.xyz",
)
TYPES = ("bf16", "f16", "e4m3", "e5m2", "e2m1", "f32", "tf32", "s8", "u8", "e8m0", "ue4m3", "f64")
FITTING = {
    "StringParamType": ("1", "4", "16", "0x10", "17,42", "K"),
    "FloatParamType": ("1", "0.5", "-2", "0", "nan", "1e400", "x"),
    "Path": FILES,
    "Types": TYPES,
    "Extents": ("1", "2x2", "4x1x1", "32", "0", "x"),
    "ShapeParam": ("8x8", "64x16", "2x32", "128x4", "1x1", "16x8"),
    "SpanParam": ("0:4", "2", "1:", ":3", "7"),
    "AddressParam": ("0", "16", "0x80", "1024"),
    "ElementParam": ("0,0", "7,3", "15,15"),
    "ElementOfBatches": ("0,0", "7,3", "1,7,3", "9,0,0"),
    "Whole": ("0", "1", "2", "4", "8", "16", "31", "1000"),
    "Positive": ("1", "0.5"),
    "RowList": ("1", "1,2", "3,1,8"),
    "device_name": ("sim", "sim:lazy", "auto", "cuda", "sim:random"),
    "target": ("sm_80", "sm_89", "sm_90a", "sm_100a", "sm_120a"),
    "key": ("a", "b", "x"),
    "major": ("K", "MN"),
    "decode codes": ("0x7e", "255", "0b101", "-", "codes.txt", "x.npy", "w.bin"),
    "encode values": ("1", "-0.3", "1e-9", "448", "nan", "inf", "0x1.8p3", "f32:0x3f800000", "-", "1e400", "-0"),
    "layout file": ("x.npy", "absent.csv", "codes.txt"),
    "layout place": ("0", "5", "1:3", "127", "32"),
    "layout row": ("0", "3", "17", "-1", "63"),
    "layout memory": ("128B", "64B", "32B", "none"),
    "swizzle addresses": ("0", "0x80", "1000", "-"),
    "banks addresses": ("0", "4", "128", "0x100", "-"),
    "banks width": ("4", "8", "16", "ld.shared.v4.b32", "ldmatrix.m8n8.x4.b16"),
    "scales file": ("w.bin", "x.npy", "z.safetensors"),
    "desc words": (
        "0x4000004000010040",
        "0x10",
        "start_address=1024",
        "swizzle=128B",
        "w.bin",
        "dims=64,64",
        "box=8,8",
    ),
    "desc fields": ("start_address=1024", "swizzle=128B", "leading_byte_offset=16", "stride_byte_offset=1024"),
    "show file": ("x.npy", "y.npz", "z.safetensors", "w.bin"),
    "show layout": ("128B", "nvidia_128x4", "mma.m16n8k16.bf16.a", "wgmma.m64n8k16.bf16.d"),
    "diff got": ("x.npy", "w.bin", "y.npz"),
    "diff want": ("x.npy", "w.bin", "z.safetensors"),
    "mma a": ("1,2", "0x38,0x40", "1", "x.npy", "nan,inf"),
    "mma b": ("1,2", "0x38,0x40", "1", "x.npy", "-inf,0"),
    "mma c": ("0", "1.5", "x.npy"),
    "mma unit": ("mma.sync", "wgmma", "tcgen05.f8f6f4", "tcgen05.mxf4", "mfma"),
    "replay case": ("case.json", "k.ptx"),
    "kernels files": ("kern.py", "absent.npy"),
    "verify files": ("kern.py",),
    "verify names": ("copy", "linear"),
    "verify profile": ("quick", "ci", "night"),
    "simulate file": ("k.ptx", "c.ptx", "k.cu"),
    "simulate entry": ("add", "k", "twice"),
    "simulate grid": ("1", "2", "2x2", "3x1x2"),
    "simulate block": ("32", "64", "8x4", "1"),
    "simulate cluster": ("1", "2"),
    "simulate arguments": ("zeros:u32:64", "u32:16", "x.npy", "bf16:x.npy", "f32:1.5", "zeros:u8:16", "u64:0"),
    "simulate policy": ("eager", "lazy", "random", "all"),
    "simulate arithmetic": ("silicon", "exact"),
    "simulate trace": ("0", "0:1-9", "1:4"),
    "simulate at": ("table", "tile", "arg0", "arg0+4:4", "0x10"),
    "ptx files": ("k.ptx", "c.ptx"),
    "completion shell": ("bash", "zsh", "fish"),
}
SLOW = {"simulate": ("--seconds", "1"), "verify": ("--cases", "1"), "explain-diff": ("--seconds", "1")}
NEVER = {"-h", "--clear-cache", "--rerun", "--jobs", "--cluster"}
PROGRAMS = {"run"}
"""Commands that start a program of the user's: no odd word is to be one."""
Leaf = tuple[tuple[str, ...], click.Command]


def prepare(folder: Path) -> None:
    """The files that command lines name, and suites of bring-up that have no cases: each would take minutes."""
    suites.run_suites = lambda *_: iter(())
    bringing_up.tasks_of = lambda *_: ()
    for variable in ("COLUMNS", "NO_COLOR", "_REFSIM_COMPLETE"):
        os.environ.pop(variable, None)
    os.environ["XDG_CACHE_HOME"] = str(folder.parent / "cache")
    os.chdir(folder)
    texts = {"k.ptx": PTX_TEXTS[0], "c.ptx": PTX_TEXTS[1], "k.cu": SOURCE, "kern.py": KERNELS, "case.json": CASE}
    for name, text in {**texts, "pyproject.toml": PROJECT, "codes.txt": "0x7e 3 0b11\n"}.items():
        (folder / name).write_text(text)
    codes = np.arange(64, dtype=np.uint16).reshape(8, 8)
    save(folder / "x.npy", codes, "bf16")
    save_all(folder / "y.npz", {"a": (codes, "f16"), "b": (codes % 16, "e2m1")})
    save_all(folder / "z.safetensors", {"a": (codes, "f16"), "b": (codes % 16, "e2m1")})
    save(folder / "w.bin", codes, "e4m3")


def contents(folder: Path) -> dict[str, bytes]:
    """What the files of a folder hold, by name."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def refill(folder: Path, first: dict[str, bytes]) -> None:
    """Every file as it was at first, and no other, so that a command line is the same whatever ran before."""
    now = contents(folder)
    for name in now.keys() - first.keys():
        (folder / name).unlink()
    for name, content in first.items():
        if now.get(name) != content:
            (folder / name).write_bytes(content)


@cache
def leaves() -> tuple[Leaf, ...]:
    """Every command that is no group, by the words that lead to it."""

    def below(path: tuple[str, ...], command: click.Command) -> Iterator[Leaf]:
        if not isinstance(command, click.Group):
            yield path, command
            return
        context = click.Context(command)
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            if found is not None:
                yield from below((*path, name), found)

    rows = [(name, listing) for name, listing in COMMANDS.items() if name not in PROGRAMS]
    return tuple(leaf for name, listing in rows for leaf in below((name,), listing.load(name)))


@cache
def _known(kind: Name) -> tuple[str, ...]:
    return tuple(map(str, kind.known())) or ("x",)


def drawn(draw: random.Random) -> list[str]:
    """One command line: in a third of all lines only what fits, in the others odd words in odd places."""
    odd = draw.choice((0.0, 0.08, 0.3))
    path, command = draw.choice(leaves())
    words = list(path)
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            if (not parameter.required and draw.random() > 0.15) or NEVER & set(parameter.opts):
                continue
            words.append(draw.choice([*parameter.opts, *parameter.secondary_opts]))
            if not parameter.is_flag:
                words.append(_value(draw, path, parameter, odd))
        else:
            count = 1 if parameter.nargs == 1 else draw.choice((0, 1, 2, 3)) if parameter.nargs < 0 else parameter.nargs
            words += [_value(draw, path, parameter, odd) for _ in range(count)]
    if draw.random() < odd / 2:
        words.insert(draw.randrange(len(words) + 1), draw.choice(ODD))
    if draw.random() < odd / 4 and len(words) > 1:
        del words[draw.randrange(1, len(words))]
    if draw.random() < odd / 4:
        words[1:] = draw.sample(words[1:], len(words) - 1)
    return words + list(SLOW.get(path[0], ()))


def _value(draw: random.Random, path: tuple[str, ...], parameter: click.Parameter, odd: float) -> str:
    if {"-o", "--output", "--junit", "--save", "to"} & {*parameter.opts, parameter.name}:
        return draw.choice(OUTPUTS)
    if draw.random() < odd:
        return draw.choice(ODD)
    for kind in (" ".join(path), path[0]):
        if fitting := FITTING.get(f"{kind} {parameter.name}"):
            return draw.choice(fitting)
    if isinstance(parameter.type, Name):
        return draw.choice(_known(parameter.type))
    if isinstance(parameter.type, click.Choice):
        return str(draw.choice(parameter.type.choices))
    if isinstance(parameter.type, click.types.IntParamType):
        return str(draw.choice((0, 1, 2, 3, 4, 8, 16, 32, 100)))
    return draw.choice(FITTING.get(parameter.name or "", FITTING[type(parameter.type).__name__]))


def run(words: list[str], stdin: bytes) -> str:
    """What is wrong with the answer to a command line, if anything."""
    streams = io.BytesIO(), io.BytesIO()
    out = io.TextIOWrapper(streams[0], "utf-8", write_through=True)
    err = io.TextIOWrapper(streams[1], "utf-8", "backslashreplace", write_through=True)
    before, sys.stdin = sys.stdin, io.TextIOWrapper(io.BytesIO(stdin), "utf-8", "surrogateescape")
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main(words)
    finally:
        sys.stdin = before
    told = streams[1].getvalue().decode("utf-8", "replace")
    if code not in (0, 1, 2, 3, 4, 5):
        return f"exit {code}: {told[:300]}"
    if "Traceback" in told:
        return f"a traceback: {told[-300:]}"
    shown = [line for line in told.splitlines() if not line.startswith("again: ")]
    if max(map(len, shown), default=0) > LONGEST_LINE:
        return f"a line of {max(map(len, shown))} characters: {told[:200]!r}"
    is_verdict = code == 2 and b"error" in streams[0].getvalue()  # of a kernel whose declaration is wrong
    if code in (2, 3, 4) and "[" not in told and not told.startswith("Usage") and not is_verdict:
        return f"exit {code} without an error: {told[:200]!r}"
    return ""
