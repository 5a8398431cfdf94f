"""Single edits of refsim's source, each with the tests that must fail on it: `make mutants`, or `python tests/mutants.py`.

The edits are rows of mutants.toml beside this file. Each is made in a copy of the tree, and only the tests that the row names
run there. A mutant is killed where one fails that passes without the edit; one that cannot even be collected shows nothing and
counts as broken. A row may say why no test can see it (`survives`): it counts as one that lives, with that reason beside it.
Prints which test failed first; ends with 1 unless all are killed that no row excuses.
"""

import argparse
import compileall
import hashlib
import importlib
import json
import os
import py_compile
import shutil
import signal
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

HERE = Path(__file__).resolve().parent
ROWS = HERE / "mutants.toml"
PYTEST = ("-q", "-x", "-n", "0", "-p", "no:cacheprovider", "--tb=no", "--assert=plain")
LOADED = ("hypothesis.strategies", "ml_dtypes", "numpy", "pytest", "xml.etree.ElementTree")
KILLED, SURVIVED, BROKEN = "killed by ", "survived", "broken: "
SECONDS = 300
LEFT_OUT = shutil.ignore_patterns(".*", "__pycache__", "build", "dist")


@dataclass(frozen=True)
class Mutant:
    """One edit: `old`, which stands once in `file`, becomes `new`; some test of `tests` must then fail."""

    name: str
    topic: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    survives: str = ""

    @property
    def area(self) -> str:
        """The folder whose rules the edit breaks: ptx/checks, formats; `refsim` for a file beside them."""
        parts = Path(self.file).parts[:-1]
        return "/".join(parts[1:3] if parts[1:2] == ("ptx",) else parts[1:2]) or parts[0]

    @property
    def digest(self) -> str:
        """Names what was tried: the edit and the tests, not their texts."""
        return hashlib.sha256(repr((self.file, self.old, self.new, self.tests)).encode()).hexdigest()[:16]

    def faults(self, tree: Path) -> Iterator[str]:
        """What keeps this row from being tried in a tree."""
        file = tree / self.file
        count = file.read_text("utf-8").count(self.old) if file.is_file() else 0
        if count != 1:
            yield f"{self.name}: {self.old!r} stands {count} times in {self.file}"
        if self.old == self.new:
            yield f"{self.name}: changes nothing"
        if not self.tests:
            yield f"{self.name}: names no test"
        for test in self.tests:
            path, _, function = test.partition("::")
            if not (tree / path).is_file() or f"def {function}" not in (tree / path).read_text("utf-8"):
                yield f"{self.name}: there is no {test}"

    def edited(self, tree: Path) -> str:
        """The file's text with the edit."""
        return (tree / self.file).read_text("utf-8").replace(self.old, self.new)


def mutants() -> tuple[Mutant, ...]:
    """The rows, in the order of the file."""
    topics = tomllib.loads(ROWS.read_text("utf-8"))
    return tuple(
        Mutant(name, topic, row["file"], row["old"], row["new"], tuple(row["tests"]), row.get("survives", ""))
        for topic, rows in topics.items()
        for name, row in rows.items()
    )


class Copy:
    """A copy of a tree in which one edit at a time is tried, by a process that has loaded what every run needs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        environment = os.environ | {"PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
        self.server = subprocess.Popen(
            [sys.executable, "-P", str(HERE / "mutants.py"), "--serve"],
            cwd=folder,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, tests: Iterable[str], mutant: Mutant | None = None) -> tuple[str, list[str]]:
        """What tests say of the copy, edited or whole; and, of a whole one, all tests that fail."""
        assert self.server.stdin is not None
        assert self.server.stdout is not None
        file = self.folder / (mutant.file if mutant else "README.md")
        whole = file.read_bytes()
        try:
            if mutant:
                file.write_text(mutant.edited(self.folder), "utf-8")
            print(json.dumps({"tests": list(tests), "first": mutant is not None}), file=self.server.stdin, flush=True)
            code, failed = json.loads(self.server.stdout.readline())
        finally:
            file.write_bytes(whole)
        if code == 1 and failed:
            return KILLED + failed[0], failed
        return (SURVIVED if code == 0 else f"{BROKEN}exit code {code}"), failed

    def close(self) -> None:
        assert self.server.stdin is not None
        self.server.stdin.close()
        self.server.wait()


def serve() -> int:
    """Runs the tests of each line of stdin in a child of this process, which has loaded what is not refsim."""
    for name in LOADED:
        importlib.import_module(name)
    said = os.dup(1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    for line in sys.stdin:
        asked = json.loads(line)
        with tempfile.TemporaryFile("w+") as report:
            child = os.fork()
            if child == 0:
                os.setsid()
                code = run_tests(asked["tests"], report, first=asked["first"])
                report.flush()
                os._exit(code)
            code = _ended(child, SECONDS if asked["first"] else 20 * SECONDS)
            report.seek(0)
            os.write(said, (json.dumps([code, report.read().split()]) + "\n").encode())
    return 0


def _ended(child: int, seconds: int) -> int:
    """The exit code of a process and its children, which have so many seconds."""

    def late(*_: object) -> None:
        os.killpg(child, signal.SIGKILL)

    signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    status = os.waitpid(child, 0)[1]
    signal.alarm(0)
    return os.waitstatus_to_exitcode(status)


def run_tests(tests: list[str], report: "object", *, first: bool) -> int:
    """pytest in this process until a test fails, or to the end; names of those that failed go to the report.

    A law that fails is not shrunk: that takes minutes.
    """
    import pytest

    class Failures:
        @pytest.hookimpl(trylast=True)  # there is a profile
        def pytest_configure(self) -> None:
            from hypothesis import Phase, settings

            settings.register_profile("unshrunk", settings.default, phases=(Phase.explicit, Phase.generate))
            settings.load_profile("unshrunk")

        def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
            if report.failed:
                print(report.nodeid.partition("[")[0], file=written)

    written = report
    sys.path.insert(0, os.getcwd())
    options = PYTEST if first else tuple(word for word in PYTEST if word != "-x")
    return int(pytest.main([*options, *tests], plugins=[Failures()]))


def compiled_copies(tree: Path, folder: Path, count: int) -> list[Path]:
    """So many copies of a tree with its bytecode, which is compiled once; Python gives code the name of the file it is beside.

    Bytecode is trusted by the hash of its source: an edit of the same size within the same second is seen.
    """
    first, *others = (folder / str(number) for number in range(count))
    shutil.copytree(tree, first, ignore=LEFT_OUT)
    for part in ("refsim", "gpu"):
        hashed = py_compile.PycInvalidationMode.CHECKED_HASH
        compileall.compile_dir(first / part, quiet=2, workers=count, invalidation_mode=hashed)
    for other in others:
        shutil.copytree(first, other)
    return [first, *others]


class Copies:
    """Copies of one tree, one for each job."""

    def __init__(self, tree: Path, folder: Path, count: int) -> None:
        self.all = list(map(Copy, compiled_copies(tree, folder, count)))
        self.free: SimpleQueue[Copy] = SimpleQueue()
        for copy in self.all:
            self.free.put(copy)

    def verdict(self, mutant: Mutant) -> str:
        """What the named tests say of a mutant."""
        copy = self.free.get()
        try:
            if any(mutant.faults(copy.folder)):  # another tree
                return "stands otherwise there"
            return copy.run(mutant.tests, mutant)[0]
        finally:
            self.free.put(copy)

    def failing(self, tests: Iterable[str]) -> list[str]:
        """Which of these tests fail where nothing is edited; those of a file are asked for together."""
        of_files: dict[str, list[str]] = {}
        for test in sorted(set(tests)):
            of_files.setdefault(test.partition("::")[0], []).append(test)

        def asked(named: list[str]) -> list[str]:
            copy = self.free.get()
            try:
                return copy.run(named)[1]
            finally:
                self.free.put(copy)

        with ThreadPoolExecutor(len(self.all)) as pool:
            return [test for failed in pool.map(asked, of_files.values()) for test in failed]

    def close(self) -> None:
        for copy in self.all:
            copy.close()


def table(verdicts: dict[Mutant, str]) -> str:
    """Killed and total of each area, then what lives, as Markdown."""
    areas: dict[str, list[Mutant]] = {}
    for mutant in verdicts:
        areas.setdefault(mutant.area, []).append(mutant)
    areas = dict(sorted(areas.items())) | {"all": list(verdicts)}
    lines = ["| area | killed | of | share | change nothing | share of the others |", "|---|---:|---:|---:|---:|---:|"]
    for area, rows in areas.items():
        killed = sum(verdicts[row].startswith(KILLED) for row in rows)
        alike = sum(bool(row.survives) and not verdicts[row].startswith(KILLED) for row in rows)
        of_others = f"{100 * killed / (len(rows) - alike):.1f} %" if len(rows) > alike else ""
        lines.append(
            f"| {area} | {killed} | {len(rows)} | {100 * killed / len(rows):.1f} % | {alike or ''} | {of_others} |"
        )
    alive = {mutant: verdict for mutant, verdict in verdicts.items() if not verdict.startswith(KILLED)}
    if alive:
        lines += ["", "| what lives | file | edit | why |", "|---|---|---|---|"]
    for mutant, verdict in alive.items():
        edit = f"`{mutant.old}` becomes `{mutant.new}`".replace("|", "\\|")
        lines.append(f"| {mutant.name} | `{mutant.file}` | {edit} | {mutant.survives or verdict} |")
    return "\n".join(lines)


def renewed(page: Path, text: str) -> None:
    """A report whose tables, between its two marks, are these."""
    begin, end = "<!-- tables -->\n", "<!-- end of tables -->"
    before, _, rest = page.read_text("utf-8").partition(begin)
    page.write_text(f"{before}{begin}{text}\n{end}{rest.partition(end)[2]}", "utf-8")


def known(path: Path | None) -> dict[str, str]:
    """Verdicts of an earlier run, by digest: a file of JSON lines."""
    if path is None or not path.is_file():
        return {}
    return dict(json.loads(line) for line in path.read_text("utf-8").splitlines())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="mutants, areas or topics to try; all if none is named")
    parser.add_argument("--tree", type=Path, default=HERE.parent, help="the tree to try them in (default: this one)")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument(
        "--resume", type=Path, help="verdicts of this file are not asked again; new ones are added to it"
    )
    parser.add_argument("--report", type=Path, help="write the table of areas and what lives into this page")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        return serve()
    asked = set(given.names)
    if asked and given.report:
        parser.error("a report is of all mutants")
    chosen = [row for row in mutants() if not asked or asked & {row.name, row.area, row.topic}]
    faults = [fault for mutant in chosen for fault in mutant.faults(HERE.parent)]
    if faults or not chosen:
        print("\n".join(faults) or f"no mutant, area or topic is called {' or '.join(given.names)}")
        return 2
    earlier = known(given.resume)
    verdicts = {mutant: earlier[mutant.digest] for mutant in chosen if mutant.digest in earlier}
    left = [mutant for mutant in chosen if mutant not in verdicts]
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(given.jobs) as pool:
        copies = Copies(given.tree.resolve(), Path(folder), given.jobs)

        def note(mutant: Mutant, verdict: str) -> None:
            verdicts[mutant] = verdict
            print(f"| {mutant.area} | {mutant.name} | `{mutant.file}` | {verdict} |", flush=True)
            if given.resume:
                given.resume.parent.mkdir(parents=True, exist_ok=True)
                with given.resume.open("a", encoding="utf-8") as stream:
                    stream.write(json.dumps([mutant.digest, verdict]) + "\n")

        for mutant, verdict in zip(left, pool.map(copies.verdict, left), strict=True):
            note(mutant, verdict)
        killers = {mutant: verdicts[mutant].removeprefix(KILLED) for mutant in left}
        killers = {mutant: test for mutant, test in killers.items() if test != verdicts[mutant]}
        failing = copies.failing(killers.values())
        for mutant, test in killers.items():
            if test in failing:
                note(mutant, f"{BROKEN}{test} fails without the edit")
        copies.close()
    text = table({mutant: verdicts[mutant] for mutant in chosen})
    print(f"\n{text}")
    if given.report:
        renewed(given.report, text)
    return int(any(not verdict.startswith(KILLED) and not row.survives for row, verdict in verdicts.items()))


if __name__ == "__main__":
    sys.exit(main())
