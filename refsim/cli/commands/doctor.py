"""refsim doctor: installed and missing parts, the cost of a missing part, and a trial run of one kernel."""

import platform
import sys
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

import click

from refsim.cli import console
from refsim.cli.delivery import Answer, answers
from refsim.cli.devices import NamedDevice
from refsim.errors import Kind, RefsimError
from refsim.render import Column, Document, Table

if TYPE_CHECKING:
    from refsim.device import Device

COLUMNS = (Column("part", strong=True), Column("state"), Column("found"), Column("help", drop=1))
PASSED_OVER = (Column("passed over", strong=True), Column("in"), Column("because"))
STEPS = (Column("step", strong=True, of="name"), Column("state"), Column("by"), Column("from", of="brought"))
_PACKAGES = (
    ("numpy", "numpy", "pip install refsim"),
    ("ml_dtypes", "ml_dtypes", "pip install refsim"),
    ("hypothesis", "hypothesis", "pip install 'refsim[testing]' for refsim verify"),
    ("pytest", "pytest", "pip install 'refsim[testing]' for the conformance suites"),
    ("cuda-bindings", "cuda-bindings", "pip install 'refsim[gpu]'; without it libcuda is called by ctypes"),
    ("PyCUDA", "pycuda", "not needed with cuda-bindings; pip install 'refsim[pycuda]'"),
)
Row = tuple[str, str, str, str]


@click.command()
@click.option("--clear-cache", is_flag=True, help="Delete the compiled PTX and cubins in the user cache.")
@answers
def command(clear_cache: bool, on: NamedDevice) -> Answer:
    """Check packages, compilers, GPUs and caches, then compile, assemble and run one kernel.

    A missing GPU or compiler is no error: the simulated GPU and the bundled PTX replace them. The exit code is 4 if a device
    that you name is missing. It is 5 if an installed part fails, and 1 if the kernel returns wrong bits.

    \b
      refsim doctor
      refsim doctor --device sim --as json
    """
    from refsim.device import cache, toolchain
    from refsim.device.trial import tried

    if clear_cache:
        removed = cache.clear_cache()
        console.tell(f"removed {removed} cache entries")
    rows: list[Row] = [("Python", "ok", f"{platform.python_version()} at {sys.prefix}", "")]
    rows += [_package(*row) for row in _PACKAGES]
    gpu, device, problem = _gpu(on.device_name)
    rows += [*_compilers(), _assembler(), gpu, _bundled(), _cache()]
    parts = [Table(COLUMNS, tuple(rows), key="parts")]
    over = tuple((part.kind, part.origin, part.lacks) for part in toolchain.search().parts if part.lacks)
    if over:
        parts.append(Table(PASSED_OVER, over, key="passed_over"))
    steps = [] if device is None else tried(device)
    parts.append(Table.of(STEPS, steps, key="trial"))
    if problem:
        console.tell_error(problem)
    code = problem.exit_code if problem else max((step.exit_code for step in steps), default=0)
    return Answer(Document(tuple(parts), "doctor"), code)


def _package(part: str, package: str, advice: str) -> Row:
    try:
        return part, "ok", version(package), ""
    except PackageNotFoundError:
        return part, "missing", "", advice


def _compilers() -> list[Row]:
    """Return the entries of NVRTC and the CUDA headers, with their places."""
    from refsim.device import toolchain

    found = toolchain.find_toolchain()
    if found is None:
        advice = f"{toolchain.INSTALL} (else the bundled PTX is used)"
        return [("NVRTC", "missing", "", advice), ("CUDA headers", "missing", "", advice)]
    library, _, headers = found.origin.partition("; headers: ")
    return [("NVRTC", "ok", library, ""), ("CUDA headers", "ok", headers or library, "")]


def _assembler() -> Row:
    from refsim.device.assembling import required_assembler

    try:
        found = required_assembler("")
        return "ptxas", "ok", f"{str(found).removeprefix('ptxas ')} of {found.origin}", ""
    except RefsimError as error:
        return "ptxas", "missing", "", f"{error.help} (else a GPU's driver assembles)"


def _gpu(name: str) -> "tuple[Row, Device | None, RefsimError | None]":
    """Return the entry of the GPU, the device for the trial run, and the error of a named device that is missing."""
    from refsim import device

    asked = name.startswith("cuda")
    try:
        gpu = device.open(name if asked else "cuda")
    except RefsimError as error:
        if asked and error.kind is not Kind.MISSING:
            raise
        row = ("GPU", "missing" if asked else "none", error.what, "the simulated GPU runs instead")
        return row, None if asked else device.open("sim" if name == "auto" else name), error if asked else None
    facts = gpu.describe()
    found = f"{facts['device']}, {facts['driver']}, {facts['target']}, through {facts['backend']}"
    return ("GPU", "ok", found, ""), gpu if name == "auto" or asked else device.open(name), None


def _bundled() -> Row:
    from refsim.device import compile as compiling

    found = compiling.bundled_targets()
    return ("bundled PTX", "ok", ", ".join(found), "") if found else ("bundled PTX", "missing", "", "reinstall refsim")


def _cache() -> Row:
    from refsim.device import cache

    entries, size = cache.cache_size()
    return (
        "cache",
        "ok",
        f"{entries} entries, {size / 1e6:.1f} MB in {cache.cache_directory()}",
        "--clear-cache empties it",
    )
