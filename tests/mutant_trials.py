"""One single edit of mutants.toml tried in a copy of the tree: the work of a shard of `make mutants`.

A copy is kept by each worker as long as it lives, and beside it a process that runs the tests there (mutant_server.py).
"""

import atexit
import compileall
import hashlib
import json
import os
import py_compile
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from refsim.errors import Kind, RefsimError

ROOT = Path(__file__).resolve().parents[1]
KILLED, SURVIVED, BROKEN = "killed by ", "survived", "broken: "
LEFT_OUT = shutil.ignore_patterns(".*", "__pycache__", "build", "dist")
SHARED = "REFSIM_MUTANTS_COPIES"
"""The variable that names a folder where workers of one machine find a compiled copy and keep their own."""


def trial(ask: Mapping[str, str]) -> dict[str, str]:
    """What the named tests say of one edit: {"verdict": ...}.

    `ask` has `tree`, its `sources` (as `sources_of`), `file`, `old`, `new` and `tests`, one a line. A test that fails
    without the edit too kills nothing. Raises RefsimError `other-sources` (exit 4) where the tree is another one by now.
    """
    copy = _copy(ask["tree"], ask["sources"])
    tests = ask["tests"].splitlines()
    with edited(copy.folder / ask["file"], ask["old"], ask["new"]):
        verdict, failed = copy.run(tests)
    if verdict.startswith(KILLED) and copy.run(failed)[1]:
        verdict = f"{BROKEN}{failed[0]} fails without the edit"
    return {"verdict": verdict}


def sources_of(tree: Path) -> str:
    """Names all files of a tree and their bytes, 16 hexadecimal digits."""
    found = hashlib.sha256()
    for folder, folders, names in os.walk(tree):
        left_out = LEFT_OUT(folder, [*folders, *names])
        folders[:] = sorted(set(folders) - left_out)
        for name in sorted(set(names) - left_out):
            path = Path(folder, name)
            found.update(f"{path.relative_to(tree)}\0{path.stat().st_size}\0".encode() + path.read_bytes())
    return found.hexdigest()[:16]


@contextmanager
def edited(file: Path, old: str, new: str) -> Iterator[None]:
    """A file in which `old`, which stands there once, is `new`."""
    whole = file.read_bytes()
    file.write_text(whole.decode().replace(old, new), "utf-8")
    try:
        yield
    finally:
        file.write_bytes(whole)


@contextmanager
def shared_copies(tree: Path) -> Iterator[None]:
    """Has the workers of this machine copy a tree that was compiled once, into a folder that is gone afterwards."""
    with tempfile.TemporaryDirectory() as folder:
        _compiled(tree, Path(folder, "whole"))
        os.environ[SHARED] = folder
        try:
            yield
        finally:
            del os.environ[SHARED]


def _compiled(tree: Path, copy: Path) -> None:
    """A copy of a tree with its bytecode; Python gives code the name of the file it is beside.

    Bytecode is trusted by the hash of its source: an edit of the same size within the same second is seen.
    """
    shutil.copytree(tree, copy, ignore=LEFT_OUT)
    for part in ("refsim", "refsim_run", "gpu"):
        hashed = py_compile.PycInvalidationMode.CHECKED_HASH
        compileall.compile_dir(copy / part, quiet=2, workers=os.cpu_count() or 1, invalidation_mode=hashed)


@cache
def _copy(tree: str, sources: str) -> "Copy":
    """The copy of this worker."""
    if not Path(tree).is_dir() or sources_of(Path(tree)) != sources:
        raise RefsimError(
            "other-sources",
            "the tree is not the one that this campaign is of",
            where=tree,
            rule="all edits of a campaign are of the same sources, which every worker can read",
            help="begin anew with another --journal",
            kind=Kind.MISSING,
        )
    shared = os.environ.get(SHARED)
    folder = Path(tempfile.mkdtemp(dir=shared))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    if shared:
        shutil.copytree(Path(shared, "whole"), folder / "tree")
    else:
        _compiled(Path(tree), folder / "tree")
    return Copy(folder / "tree")


class Copy:
    """A copy of a tree, and a process that runs tests in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        environment = os.environ | {"PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
        self.server = subprocess.Popen(
            [sys.executable, "-P", str(ROOT / "tests/mutant_server.py")],
            cwd=folder,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, tests: Sequence[str]) -> tuple[str, list[str]]:
        """What tests say of the copy as it stands, and the first that fails."""
        assert self.server.stdin is not None
        assert self.server.stdout is not None
        print(json.dumps(tests), file=self.server.stdin, flush=True)
        code, failed = json.loads(self.server.stdout.readline())
        if code == 1 and failed:
            return KILLED + failed[0], failed
        return (SURVIVED if code == 0 else f"{BROKEN}exit code {code}"), []
