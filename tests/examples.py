"""Fenced blocks of Markdown pages: what each is, and how it is run as a reader would paste it."""

import contextlib
import io
import os
import re
import runpy
import shlex
import subprocess
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
NOT_RUN, LARGER, COLUMNS = "not run here: ", "in larger profiles: ", "at "
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_MARK = re.compile(r"<!-- (.*?) -->\n\Z")
_SECONDS = re.compile(r"\d+\.\d(?= s,|  bitwise|,bitwise)|(?<=passed in )\d+\.\d+s(?: \(\d+:\d+:\d+\))?")


@dataclass(frozen=True)
class Example:
    """A fenced block: its page and line, the language that it names, its text, and the comment right before it.

    `output`: it stands right behind a block of Python, whose output it is.
    """

    page: str
    line: int
    language: str
    text: str
    mark: str = ""
    output: str | None = None

    @property
    def name(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def reason(self) -> str | None:
        """Why it is not run, in the words of its comment."""
        return self.mark.removeprefix(NOT_RUN) if self.mark.startswith(NOT_RUN) else None

    @property
    def larger(self) -> str | None:
        """Why only larger profiles run it."""
        return self.mark.removeprefix(LARGER) if self.mark.startswith(LARGER) else None

    @property
    def columns(self) -> str | None:
        """How wide the terminal is that its output was written to."""
        found = re.fullmatch(r"at (\d+) columns", self.mark)
        return found[1] if found else None

    @property
    def kind(self) -> str:
        """python, console, or "" for what is neither and must say why it is not run."""
        if self.language == "python":
            return "python"
        return "console" if self.text.startswith("$ ") else ""

    def steps(self) -> list[tuple[str, str]]:
        """The commands of a console block and what each prints."""
        parts = re.split(r"^\$ ", self.text, flags=re.MULTILINE)[1:]
        found = [re.match(r"((?:[^\n]*\\\n)*[^\n]*\n)(.*)\Z", part, re.DOTALL) for part in parts]
        return [(part[1].replace("\\\n", " ").strip(), part[2]) for part in found if part]


def examples(page: Path) -> Iterator[Example]:
    """Every block of a page, in order, those that are the output of the one before left out."""
    text = page.read_text("utf-8")
    name = page.relative_to(ROOT).as_posix() if page.is_relative_to(ROOT) else page.name
    found = list(_FENCE.finditer(text))
    assert 2 * len(found) == len(re.findall(r"^```", text, re.MULTILINE)), f"{name}: a fence that does not end"
    skipped = None
    for at, match in enumerate(found):
        if match is skipped:
            continue
        output = None
        follower = found[at + 1] if at + 1 < len(found) else None
        is_next = follower is not None and not text[match.end() : follower.start()].strip()
        if match[1] == "python" and follower is not None and is_next and not follower[1] and follower[2][:2] != "$ ":
            output, skipped = follower[2], follower
        mark = _MARK.search(text[: match.start()])
        line = text[: match.start()].count("\n") + 1
        yield Example(name, line, match[1], match[2], mark[1] if mark else "", output)


def run(example: Example, *, apart: bool = True) -> list[tuple[str, str, str]]:
    """Runs a block in the working directory: for each step its text, what the page shows, and what was printed.

    Python stands in a file: in that which its first line names, where it names one. It runs in a process of its own, or, not
    `apart`, in this one, which has loaded what it imports.
    """
    if example.kind == "python":
        named = re.match(r"# (\w+\.py)\n", example.text)
        file = Path(named[1] if named else "example.py")
        file.write_text(example.text, "utf-8")
        printed = _apart(example, file) if apart else _here(file)
        return [(example.text, example.output or "", printed if example.output is not None else "")]
    return [(command, shown, _printed(command, example.columns)) for command, shown in example.steps()]


def same(shown: str, printed: str) -> bool:
    """Return whether a page shows what was printed; `...` stands for words, and on a line of its own for lines.

    Seconds may differ. So may the number of elements, which Hypothesis draws, and of elements that are recomputed.
    """
    shown, printed = (_SECONDS.sub("0.0", text.rstrip("\n")) for text in (shown, printed))
    if "verify" in shown or "time [s]" in shown:
        shown, printed = (re.sub(r" +(?=0\.0)", " ", text) for text in (shown, printed))
    if "elements" in shown:
        shown, printed = (re.sub(r"(?m)^(pass +\S+ +\d+) +\d+", r"\1 N", text) for text in (shown, printed))
    if "slow definitions" in shown:
        shown, printed = (
            re.sub(r"(?m)^slow definitions: [\d,]+", "slow definitions: N", text) for text in (shown, printed)
        )
    parts = re.split(r"(?m)^\.\.\.$", shown)
    pattern = r"[\s\S]*".join(r"[^\n]*".join(map(re.escape, part.split("..."))) for part in parts)
    return re.fullmatch(pattern, printed) is not None


def _printed(command: str, columns: str | None) -> str:
    """What a shell would print; refsim runs within this process, which has imported it already."""
    words = shlex.split(command)
    if words[0] != "refsim":
        done = _process([sys.executable, "-m", *words] if words[0] == "pytest" else ["bash", "-c", command], columns)
        return done.stdout
    from refsim.cli import main

    out = io.StringIO()
    before = os.environ.pop("COLUMNS", None)
    try:
        if columns:
            os.environ["COLUMNS"] = columns
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()) as errors:
            code = main(words[1:])
    finally:
        os.environ.pop("COLUMNS", None)
        if before is not None:
            os.environ["COLUMNS"] = before
    assert code in (0, 1, 5), f"{command}: exit {code}: {errors.getvalue()}"
    return out.getvalue()


def main(page: str, command: str) -> int:
    """Whether what a command printed, which comes by standard input, is what a page shows behind it."""
    (shown,) = (shown for each in examples(ROOT / page) for text, shown in each.steps() if text == command)
    printed = sys.stdin.read()
    printed = printed[max(0, printed.find(shown.split("\n", 1)[0])) :]  # pip may have said something first
    if not same(shown, printed):
        print(f"{page} shows other lines behind `{command}` than these:\n{printed}")
    return 0 if same(shown, printed) else 1


def _apart(example: Example, file: Path) -> str:
    done = _process([sys.executable, str(file)], None)
    assert done.returncode == 0, f"{example.name}: {done.stderr}"
    return done.stdout


def _here(file: Path) -> str:
    """What a file prints that runs within this process; modules that it imports from beside it are forgotten."""
    out, known, folder = io.StringIO(), set(sys.modules), str(file.resolve().parent)
    sys.path.insert(0, folder)
    try:
        with contextlib.redirect_stdout(out), warnings.catch_warnings():
            warnings.simplefilter("default")
            runpy.run_path(str(file), run_name="__main__")
    finally:
        sys.path.remove(folder)
        for name in sys.modules.keys() - known:
            if str(getattr(sys.modules[name], "__file__", None)).startswith(folder):
                del sys.modules[name]
    return out.getvalue()


def _process(command: list[str], columns: str | None) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **({"COLUMNS": columns} if columns else {})}
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
