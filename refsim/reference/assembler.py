"""ptxas as a check of legal PTX: the newest installed release, and the instructions of a list that it rejects."""

import re
import shutil
import subprocess
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from refsim.errors import Kind, RefsimError
from refsim.ptx.isa.forms import Bound
from refsim.ptx.isa.instances import refused
from refsim.reference import single_instruction

OPERAND_WORDS = {
    "size": "128",
    "event": "1",
    "bytes": "16",
    "n": "1",
    "immLut": "0xca",
    "dsink": "_",
    "registers": "64",
    "ordinal": "1",
    "code": "1",
    "selector": "0",
    "split": "2",
}
OPERAND_WORDS |= dict.fromkeys(("scale_a", "scale_b", "trans_a", "trans_b"), "1")
"""The text of operands that must be constants, or the sink."""
_PLACES = (("nvidia", "*/bin/ptxas"), ("triton", "backends/nvidia/bin/ptxas*"))


@cache
def releases() -> tuple[tuple[tuple[int, int], str], ...]:
    """Return every installed ptxas as (release, path), oldest first: from PATH, NVIDIA's wheels and Triton. Raises
    RefsimError `assembler-missing` without one."""
    found = {shutil.which("ptxas")}
    for package, pattern in _PLACES:
        spec = find_spec(package)
        for root in (spec.submodule_search_locations or ()) if spec else ():
            found |= {str(path) for path in Path(root).glob(pattern)}
    rows = []
    for path in filter(None, found):
        text = subprocess.run([path, "--version"], capture_output=True, text=True, check=False).stdout
        if match := re.search(r"release (\d+)\.(\d+)", text):
            rows.append(((int(match[1]), int(match[2])), path))
    if not rows:
        help = "pip install nvidia-cuda-nvcc"
        raise RefsimError("assembler-missing", "there is no ptxas here", help=help, kind=Kind.MISSING)
    return tuple(sorted(rows))


def ptx_version(release: tuple[int, int]) -> str:
    """Return the newest PTX version of a release from 12.9 on: 13.0 takes 9.0, 13.4 takes 9.4, 12.9 takes 8.8."""
    major, minor = release
    return f"9.{minor}" if major == 13 else f"8.{minor - 1}"


def first_target(since: str) -> str:
    """Return the target on which to check a form: ptxas 13 knows no target before sm_75."""
    return since if int(re.sub(r"\D", "", since)) >= 75 else "sm_75"


def refusals(bounds: list[Bound], target: str, folder: Path, release: int = -1) -> dict[str, str]:
    """Return ptxas' messages for the instructions that it rejects for a target, by opcode.

    ptxas reports some errors only once other errors are gone, so the rest is assembled again. `release` is an index of
    `releases()`, by default the newest.
    """
    version, program = releases()[release]
    found: dict[str, str] = {}
    while bounds := [bound for bound in bounds if bound.opcode not in found]:
        text = folder / f"{target}.ptx"
        text.write_text(single_instruction.listing(bounds, target, OPERAND_WORDS, ptx_version(version)))
        command = [program, "-arch", target, "-c", str(text), "-o", str(folder / "forms.cubin")]
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
        if ended.returncode == 0:
            break
        messages = refused(ended.stdout + ended.stderr, len(bounds))
        if not messages:
            raise RefsimError("compile-error", f"ptxas refuses the listing: {ended.stderr[:2000]}")
        found |= {bounds[at].opcode: message for at, message in messages.items()}
    return found
