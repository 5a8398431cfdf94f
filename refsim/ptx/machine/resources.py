"""Registers that a compiled entry uses: only ptxas knows, and it is asked where it is at hand."""

import re
import shutil
import subprocess
import tempfile
from contextlib import suppress
from functools import lru_cache
from importlib import metadata
from pathlib import Path

SECONDS = 120  # ptxas needs minutes for some generated kernels: then the launch goes on without the number


def find_ptxas() -> str | None:
    """ptxas of the wheel nvidia-cuda-nvcc, else the one on PATH, else None."""
    with suppress(metadata.PackageNotFoundError):
        distribution = metadata.distribution("nvidia-cuda-nvcc")
        for path in distribution.files or ():
            if path.name in ("ptxas", "ptxas.exe") and (found := Path(str(distribution.locate_file(path)))).is_file():
                return str(found)
    return shutil.which("ptxas")


@lru_cache(maxsize=256)
def registers_used(text: str, entry: str, target: str) -> int | None:
    """Registers of a thread as `ptxas -v` reports them; None without ptxas, or where it refuses the text.

    One entry is assembled, not the file, and asked once for each text.
    """
    program = find_ptxas()
    if program is None:
        return None
    with tempfile.TemporaryDirectory(prefix="refsim-") as directory:
        (Path(directory) / "kernel.ptx").write_text(text, encoding="utf-8", newline="\n")
        command = [
            program,
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
    used = re.search(r"\bUsed (\d+) registers", answer.stdout + answer.stderr)
    return int(used[1]) if answer.returncode == 0 and used else None
