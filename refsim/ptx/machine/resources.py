"""Registers and local memory that a compiled entry uses, as ptxas reports them where a ptxas is installed."""

import re
import subprocess
import tempfile
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from refsim.ptx.machine.assemblers import assembler_for

SECONDS = 120  # ptxas needs minutes for some generated kernels: then the launch goes on without the number


@dataclass(frozen=True)
class Assembled:
    """The registers of a thread of an assembled entry, and its bytes of local memory for spills."""

    registers: int
    stack_bytes: int


def registers_used(text: str, entry: str, target: str) -> int | None:
    """Return the registers of a thread as `ptxas -v` reports them, or None if no ptxas reads the text."""
    found = assembled(text, entry, target)
    return None if found is None else found.registers


@lru_cache(maxsize=256)
def assembled(text: str, entry: str, target: str) -> Assembled | None:
    """Return what `ptxas -v` reports of an entry, or None if no ptxas reads the text. Only this entry is assembled,
    once for each text."""
    assembler = assembler_for(text)
    if assembler is None:
        return None
    with tempfile.TemporaryDirectory(prefix="refsim-") as directory:
        (Path(directory) / "kernel.ptx").write_text(text, encoding="utf-8", newline="\n")
        command = [
            assembler.program,
            "--verbose",
            f"--gpu-name={target}",
            f"--entry={entry}",
            "--output-file=kernel.cubin",
            "kernel.ptx",
        ]
        try:
            answer = subprocess.run(
                command, cwd=directory, capture_output=True, text=True, check=False, timeout=SECONDS
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
    said = answer.stdout + answer.stderr
    used, stack = re.search(r"\bUsed (\d+) registers", said), re.search(r"(\d+) bytes stack frame", said)
    if answer.returncode or not used:
        return None
    return Assembled(int(used[1]), int(stack[1]) if stack else 0)
