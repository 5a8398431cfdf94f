"""Single edits of refsim's source, each with the tests that must fail on it: `python tests/mutants.py`.

The edits are rows of mutants.toml beside this file. Each is made in a copy of the tree, and only the tests that the row names
run there. A mutant is killed where one fails that passes without the edit; one that cannot even be collected shows nothing and
counts as broken. Prints which test failed first; ends with 1 unless all are killed.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

HERE = Path(__file__).resolve().parent
ROWS = HERE / "mutants.toml"
PYTEST = ("-q", "-x", "-n", "0", "-p", "no:cacheprovider", "--tb=no")
FAILED = "first to fail: "
KILLED, SURVIVED = "killed by ", "survived"
SECONDS = 300


@dataclass(frozen=True)
class Mutant:
    """One edit: `old`, which stands once in `file`, becomes `new`; some test of `tests` must then fail."""

    name: str
    area: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    def faults(self, tree: Path) -> Iterator[str]:
        """What keeps this row from being tried in a tree."""
        file = tree / self.file
        count = file.read_text("utf-8").count(self.old) if file.is_file() else 0
        if count != 1:
            yield f"{self.name}: {self.old!r} stands {count} times in {self.file}"
        if self.old == self.new:
            yield f"{self.name}: changes nothing"
        for test in self.tests:
            path, _, function = test.partition("::")
            if not (tree / path).is_file() or f"def {function}" not in (tree / path).read_text("utf-8"):
                yield f"{self.name}: there is no {test}"

    def edited(self, tree: Path) -> str:
        """The file's text with the edit."""
        return (tree / self.file).read_text("utf-8").replace(self.old, self.new)


def mutants() -> tuple[Mutant, ...]:
    """The rows, in the order of the file."""
    areas = tomllib.loads(ROWS.read_text("utf-8"))
    return tuple(
        Mutant(name, area, row["file"], row["old"], row["new"], tuple(row["tests"]))
        for area, rows in areas.items()
        for name, row in rows.items()
    )


class Copies:
    """Copies of a tree in which edits are tried, one for each job."""

    def __init__(self, tree: Path, folder: Path, count: int) -> None:
        self.free: SimpleQueue[Path] = SimpleQueue()
        self.whole: dict[str, str] = {}
        for number in range(count):
            copy = folder / str(number)
            shutil.copytree(tree, copy, ignore=shutil.ignore_patterns(".*", "__pycache__", "build", "dist"))
            self.free.put(copy)

    def verdict(self, mutant: Mutant) -> str:
        """What the named tests say of a mutant: killed by one that passes where nothing is edited."""
        copy = self.free.get()
        try:
            if any(mutant.faults(copy)):  # another tree
                return "stands otherwise there"
            file = copy / mutant.file
            whole, edited = file.read_text("utf-8"), mutant.edited(copy)
            file.write_text(edited, "utf-8")
            said = _run(copy, mutant.tests)
            file.write_text(whole, "utf-8")
            if said.startswith(KILLED):
                test = said.removeprefix(KILLED)
                self.whole[test] = without = self.whole.get(test) or _run(copy, (test,))
                if without != SURVIVED:
                    return f"broken: {test} fails without the edit"
            return said
        finally:
            self.free.put(copy)


def _run(copy: Path, tests: tuple[str, ...]) -> str:
    # No bytecode: an edit of the same size within the same second would not be seen.
    environment = os.environ | {"PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-P", str(HERE / "mutants.py"), "--run", *tests]
    try:
        ended = subprocess.run(
            command, cwd=copy, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return f"broken: {SECONDS} s"
    failed = [line.removeprefix(FAILED) for line in ended.stdout.splitlines() if line.startswith(FAILED)]
    if ended.returncode == 1 and failed:
        return KILLED + failed[0]
    return SURVIVED if ended.returncode == 0 else f"broken: exit code {ended.returncode}"


def run_tests(tests: list[str]) -> int:
    """pytest in this process until a test fails, which is told. A law that fails is not shrunk: that takes minutes."""
    import pytest

    class First:
        @pytest.hookimpl(trylast=True)  # there is a profile
        def pytest_configure(self) -> None:
            from hypothesis import Phase, settings

            settings.register_profile("unshrunk", settings.default, phases=(Phase.explicit, Phase.generate))
            settings.load_profile("unshrunk")

        def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
            if report.failed:
                print(f"\n{FAILED}{report.nodeid.partition('[')[0]}")

    return int(pytest.main([*PYTEST, *tests], plugins=[First()]))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="mutants to try; all of them if none is named")
    parser.add_argument("--tree", type=Path, default=HERE.parent, help="the tree to try them in (default: this one)")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--run", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.run:
        return run_tests(given.names)
    chosen = [mutant for mutant in mutants() if not given.names or mutant.name in given.names]
    faults = [fault for mutant in chosen for fault in mutant.faults(HERE.parent)]
    if faults or not chosen:
        print("\n".join(faults) or f"no mutant is called {' or '.join(given.names)}")
        return 2
    killed = 0
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(given.jobs) as pool:
        copies = Copies(given.tree.resolve(), Path(folder), given.jobs)
        print("| area | mutant | file | verdict |\n|---|---|---|---|")
        for mutant, verdict in zip(chosen, pool.map(copies.verdict, chosen), strict=True):
            killed += verdict.startswith(KILLED)
            print(f"| {mutant.area} | {mutant.name} | `{mutant.file}` | {verdict} |", flush=True)
    print(f"\n{killed} of {len(chosen)} killed")
    return 0 if killed == len(chosen) else 1


if __name__ == "__main__":
    sys.exit(main())
