"""Registers and local memory that a compiled entry uses: only ptxas knows, and it is asked where it is at hand."""

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
    """What a thread of an assembled entry has: registers, and bytes of local memory for what they do not hold."""

    registers: int
    stack_bytes: int


def registers_used(text: str, entry: str, target: str) -> int | None:
    """Registers of a thread as `ptxas -v` reports them; None where no ptxas reads the text."""
    found = assembled(text, entry, target)
    return None if found is None else found.registers


@lru_cache(maxsize=256)
def assembled(text: str, entry: str, target: str) -> Assembled | None:
    """What `ptxas -v` reports of an entry; None where no ptxas reads the text.

    One entry is assembled, not the file, and asked once for each text.
    """
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
