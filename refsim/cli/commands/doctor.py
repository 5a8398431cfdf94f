"""refsim doctor: what is installed here, what is missing, and what that costs."""

import platform
import sys
from importlib.metadata import PackageNotFoundError, version

import click

from refsim.cli import console
from refsim.cli.delivery import answers
from refsim.errors import RefsimError
from refsim.render import Column, Document, Table

COLUMNS = (Column("part", strong=True), Column("state"), Column("found"), Column("help", drop=1))
_PACKAGES = (
    ("numpy", "numpy", "pip install refsim"),
    ("ml_dtypes", "ml_dtypes", "pip install refsim"),
    ("NVRTC", "nvidia-cuda-nvrtc", "pip install 'refsim[sim]' (else the bundled PTX is used)"),
    ("CUDA headers", "nvidia-cuda-runtime", "pip install 'refsim[sim]'"),
    ("cuda-bindings", "cuda-bindings", "pip install 'refsim[sim]' (also for a real GPU, without PyCUDA)"),
    ("hypothesis", "hypothesis", "pip install 'refsim[testing]' for refsim verify"),
    ("pytest", "pytest", "pip install 'refsim[testing]' for the conformance suites"),
    ("PyCUDA", "pycuda", "pip install 'refsim[gpu]' for a real GPU"),
)
Row = tuple[str, str, str, str]


@click.command()
@click.option("--clear-cache", is_flag=True, help="Delete the compiled PTX and cubins in the user cache.")
@answers
def command(clear_cache: bool) -> Document:
    """What refsim finds here: packages, compilers, GPUs, caches. No GPU is not an error."""
    from refsim.device import cache

    if clear_cache:
        removed = cache.clear_cache()
        console.tell(f"removed {removed} cache entries")
    rows: list[Row] = [("Python", "ok", f"{platform.python_version()} at {sys.prefix}", "")]
    rows += [_package(*row) for row in _PACKAGES]
    rows += [_assembler(), _gpu(), _bundled(), _cache()]
    return Document((Table(COLUMNS, tuple(rows), key="parts"),), "doctor")


def _package(part: str, package: str, advice: str) -> Row:
    try:
        return part, "ok", version(package), ""
    except PackageNotFoundError:
        return part, "missing", "", advice


def _assembler() -> Row:
    from refsim.device import compile as compiling

    try:
        return "ptxas", "ok", compiling.assembler_version(), ""
    except RefsimError as error:
        return "ptxas", "missing", "", error.help


def _gpu() -> Row:
    from refsim import device

    try:
        facts = device.open("cuda").describe()
    except RefsimError as error:
        return "GPU", "none", error.what, "the simulated GPU runs instead"
    return "GPU", "ok", f"{facts['device']}, {facts['driver']}, {facts['target']}, through {facts['backend']}", ""


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
