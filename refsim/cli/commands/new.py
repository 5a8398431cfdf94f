"""refsim new: write the files of a kernel: CUDA, its declaration with an oracle, and a pytest file. Its tests pass."""

import errno
import os
import re
import shlex
from pathlib import Path

import click

from refsim.cli.delivery import answers
from refsim.cli.registry import Group
from refsim.device.kernel_sources import paths_of
from refsim.errors import RefsimError
from refsim.render import Column, Command, Document, Table, Wording

NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,59}")

_CUDA = """\
// y = e4m3(x * scale), saturating. The oracle in @NAME@_kernel.py defines every bit.
#include <cuda_bf16.h>
#include <cuda_fp8.h>

extern "C" __global__ void @NAME@_kernel(const __nv_bfloat16* x, unsigned char* y, float scale, unsigned n) {
    const unsigned stride = gridDim.x * blockDim.x;
    for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += stride) {
        y[i] = __nv_cvt_float_to_fp8(__bfloat162float(x[i]) * scale, __NV_SATFINITE, __NV_E4M3);
    }
}
"""

_DECLARATION = """\
\"\"\"The declaration of the kernel @NAME@: its test cases, how to run it, and the expected outputs.\"\"\"

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from hypothesis import strategies as st

import refsim
from refsim.testing import Kernel, Launcher
from refsim.testing import strategies as rst
from refsim.testing.recipes import COVERING, Launch, Tensor, corpus_tensors


@dataclass(frozen=True)
class Case:
    \"\"\"One test case. It describes arrays instead of holding them, so that it prints, shrinks and fits in JSON.\"\"\"

    x: Tensor
    scale: float = 1.0
    launch: Launch = COVERING


def run(launcher: Launcher, case: Case) -> dict[str, np.ndarray]:
    \"\"\"Run the kernel on any device; `upload` and `output` place guard bands around the buffers.\"\"\"
    n = case.x.n
    x = launcher.upload(case.x.codes(), name="x", misalign_bytes=case.x.misalign_bytes)
    y = launcher.output(n, np.uint8, name="y")
    case.launch.run(launcher, "@NAME@_kernel", n, x, y, np.float32(case.scale), np.uint32(n))
    return {"y": launcher.read(y)}


def oracle(case: Case) -> dict[str, np.ndarray]:
    \"\"\"Return the expected outputs: the product, rounded to float32, then to E4M3.\"\"\"
    with np.errstate(all="ignore"):
        scaled = refsim.decode(case.x.codes(), "bf16", dtype=np.float32) * np.float32(case.scale)
    return {"y": refsim.encode(scaled, "e4m3", overflow="saturate")}


KERNELS = (
    Kernel(
        "@NAME@",
        file=Path(__file__).with_name("@NAME@.cu"),
        entries=("@NAME@_kernel",),
        recipe=Case,
        problem=st.builds(Case, rst.tensors("bf16"), st.sampled_from([1.0, 0.5, 3.0]), rst.launches()),
        corpus=tuple(Case(x) for x in corpus_tensors("bf16", large=False)),
        run=run,
        oracle=oracle,
        outputs={"y": "e4m3"},
    ),
)
"""

_TEST = """\
\"\"\"Test @NAME@ against its oracle on special and generated cases, on the device of --refsim-device.\"\"\"

from pathlib import Path

import pytest
from hypothesis import given, settings

from refsim.testing import kernel_named, laws

KERNEL = kernel_named("@NAME@", [Path(__file__).with_name("@NAME@_kernel.py")])


@pytest.mark.parametrize("case", KERNEL.corpus, ids=str)
def test_special_cases(case, device):
    laws.agrees_with_oracle(KERNEL, case, device)


@settings(max_examples=25, deadline=None, derandomize=True, database=None)
@given(case=KERNEL.problem)
def test_generated_cases(case, device):
    laws.agrees_with_oracle(KERNEL, case, device)
"""


def kernel_files(name: str) -> dict[str, str]:
    """Return the content of each file by its name: NAME.cu, NAME_kernel.py and test_NAME.py. Raises RefsimError
    bad-kernel."""
    if not NAME.fullmatch(name):
        rule = f"the name of a kernel, its files and its entry is {NAME.pattern}"
        raise RefsimError("bad-kernel", f"{name!r} is not a name", rule=rule, help="refsim new kernel my_kernel")
    texts = {f"{name}.cu": _CUDA, declaring(name): _DECLARATION, f"test_{name}.py": _TEST}
    return {file: text.replace("@NAME@", name) for file, text in texts.items()}


def declaring(name: str) -> str:
    """Return the name of the Python file that declares the kernel."""
    return f"{name}_kernel.py"


def write_new(folder: Path, texts: dict[str, str]) -> list[Path]:
    """Write all files, or none if one exists already; return their paths. Raises RefsimError file-exists,
    cannot-write."""
    paths = [folder / name for name in texts]
    written: list[Path] = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path in paths:
            if os.path.lexists(path):
                raise FileExistsError(errno.EEXIST, "there already", str(path))
        for path, text in zip(paths, texts.values(), strict=True):
            with path.open("x", encoding="utf-8", newline="\n") as stream:
                written.append(path)
                stream.write(text)
    except OSError as problem:
        for path in written:
            path.unlink(missing_ok=True)
        if isinstance(problem, FileExistsError):
            what, help = f"{problem.filename} is there already, and nothing was written", "another name, or --path DIR"
            raise RefsimError("file-exists", what, rule="a new kernel overwrites no file", help=help) from problem
        reason = (problem.strerror or str(problem)).lower()
        raise RefsimError("cannot-write", f"cannot write: {reason}", where=str(problem.filename or folder)) from problem
    return written


def registration(folder: Path, declaration: str) -> tuple[str, ...]:
    """Return lines for the folder's pyproject.toml with which `refsim verify` finds the kernel without --kernels.

    refsim does not edit that file. The lines are empty if the file names the declaration already.
    """
    project = folder / "pyproject.toml"
    listed = paths_of(project, "kernels") if os.path.lexists(project) else []
    if any(path.resolve() == (folder / declaration).resolve() for path in listed):
        return ()
    names = [Path(os.path.relpath(path, folder)).as_posix() for path in listed]
    spelled = ", ".join(f'"{name}"' for name in (*names, declaration))
    return ("[tool.refsim]", f"kernels = [{spelled}]")


FILES = (Column("file", strong=True), Column("holds"))
_HOLDS = ("the kernel, in CUDA", "its declaration: test cases, launch, oracle", "its tests, for pytest")


@click.group(cls=Group)
def command() -> None:
    """Write files to start from."""


@command.command("kernel")
@click.argument("name")
@click.option(
    "--path",
    "folder",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("."),
    metavar="DIR",
    help="Folder for the files.",
)
@answers
def kernel(name: str, folder: Path) -> Document:
    """Write a kernel, its declaration and its tests.

    refsim writes NAME.cu, NAME_kernel.py (the declaration with an oracle) and test_NAME.py. All tests pass. Existing files
    stay as they are. pyproject.toml is not changed: the answer shows the lines that let `refsim verify` find the kernel.

    \b
      refsim new kernel scale
      refsim verify --kernels scale_kernel.py
      pytest test_scale.py
    """
    texts = kernel_files(name)
    lines = registration(folder, declaring(name))  # a pyproject.toml that cannot be read stops it before it writes
    written = write_new(folder, texts)
    rows = tuple((str(path), holds) for path, holds in zip(written, _HOLDS, strict=True))
    _, declaration, tests = written
    verify, test = (
        shlex.join(words) for words in (("refsim", "verify", "--kernels", str(declaration)), ("pytest", str(tests)))
    )
    steps: list[str] = [Command(f"verify  {verify}"), Command(f"test    {test}")]
    if lines:
        steps += [f"and for `refsim verify` alone, in {folder / 'pyproject.toml'}:", *map(Command, lines)]
    facts = {"verify": verify, "test": test, "pyproject": list(lines)}
    return Document(
        (Table(FILES, rows, key="files"), Wording(tuple(steps), facts, key="next", is_beside=True)),
        f"new kernel {name}",
    )
