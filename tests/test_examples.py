"""README.md and docs/*.md: every block of Python and every command runs, word for word, and prints what the page shows.

A block that cannot run has a comment right before it that says why; what those are is held here, so that none is added unseen.
`pytest tests/test_examples.py --refresh-golden` writes outputs that have changed into the pages.
"""

import re
import shutil
from pathlib import Path

import pytest

from tests.examples import ROOT, Example, examples, run, same

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
ALL = [example for page in PAGES for example in examples(page)]
RUN = [example for example in ALL if example.reason is None]
FOLDERS = {
    "docs/when-it-fails.md": ["docs/programs/reverse.cu", "tests/cli/kernels/turn.ptx"],
    "docs/programs-without-a-gpu.md": ["docs/programs/normalise_rows.py", "tests/cli/kernels/turn.ptx"],
    "docs/explaining-a-difference.md": ["docs/programs/reverse.cu", "tests/cli/kernels/served.py"],
}
"""What a page says that it starts with; all have the folder gpu of the checkout."""

LARGER = ["every bundled kernel, a minute"]
REASONS = {
    "a reader of the site types it": 2,
    ".ci/run types it into a fresh checkout": 2,
    "it needs a cluster; tests/campaigns/test_cluster.py begins a small one": 1,
    "it needs a GPU": 2,
    "tests/testing/test_fused_kernels.py runs it": 5,
    "it needs a checkout of CUTLASS and nvcc": 1,
    "it needs a checkout of DeepGEMM and nvcc": 1,
    "what a GPU that differs would show": 1,
}


def of_page(page: str) -> list[Example]:
    """The blocks of a page in order: later ones may use files of earlier ones, as a reader has them."""
    return [each for each in RUN if each.page == page]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "gpu").symlink_to(ROOT / "gpu")
    monkeypatch.chdir(tmp_path)
    return tmp_path


IN_CI = pytest.mark.ci("CI types the same commands with the wheel; seconds")


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=IN_CI) if page == "docs/ci-and-campaigns.md" else page
        for page in sorted({each.page for each in RUN})
    ],
)
def test_every_block_of_a_page_runs_and_prints_what_it_shows(page, folder, refsim_profile, request) -> None:
    for name in FOLDERS.get(page, []):
        shutil.copy(ROOT / name, folder)
    for example in of_page(page):
        if example.larger is not None and refsim_profile != "night":  # .ci/run holds its own `refsim verify` to it
            continue
        for text, shown, printed in run(example, apart=refsim_profile != "quick"):
            if not same(shown, printed) and request.config.getoption("--refresh-golden"):
                refresh(example, text, shown, printed)
            else:
                assert same(shown, printed), f"{example.name}\n{text}\nprints\n{printed}"


def refresh(example: Example, text: str, shown: str, printed: str) -> None:
    """Puts what was printed behind that step, in the place of what the page shows there."""
    page = ROOT / example.page
    content = page.read_text("utf-8")
    if example.kind == "python":
        at = content.index(example.text) + len(example.text)
    else:
        start = content.index(f"$ {text.split('  ', maxsplit=1)[0]}", content.index(example.text.split("\n")[0]))
        ended = re.compile(r"(?<!\\)\n").search(content, start)
        assert ended
        at = ended.end()
    rest = content[at:]
    body = shown.rstrip("\n")
    rest = rest.replace(body, printed.rstrip("\n"), 1) if body else printed + rest
    page.write_text(content[:at] + rest, "utf-8")


def test_every_block_runs_or_says_why_not() -> None:
    assert len(ALL) > 25
    assert [example.name for example in RUN if not example.kind] == [], (
        "neither Python nor commands: say why it is not run"
    )
    reasons = [example.reason for example in ALL if example.reason is not None]
    assert {reason: reasons.count(reason) for reason in reasons} == REASONS
    assert [example.larger for example in RUN if example.larger] == LARGER


def test_what_a_page_shows_is_compared() -> None:
    assert same("a 1\n", "a 1\n")
    assert not same("a 1\n", "a 2\n")
    assert not same("a 1\n", "a 1\nmore\n")
    assert same("first ... last\n", "first and then last\n")
    assert not same("first ... last\n", "first\nlast\n")
    assert same("first\n...\nlast\n", "first\nand\nthen\nlast\n")
    assert not same("first\n...\nlast\n", "first\nand\nthen\nlast one\n")
    assert same("pass    k      1       2.1  bitwise\ntime [s]\n", "pass    k      1      12.4  bitwise\ntime [s]\n")
    assert not same("pass  k  1  2.1  bitwise\ntime [s]\n", "fail  k  1  2.1  bitwise\ntime [s]\n")


def test_a_page_is_read_as_it_stands(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "```python\nprint(1)\n```\n\n```\n1\n```\ntext\n<!-- not run here: a reason -->\n```\nshown\n```\n\n"
        "```\n$ refsim a \\\n    b\none\n$ refsim c\n```\n\n```\nloose\n```\n"
    )
    python, reasoned, console, loose = examples(page)
    assert (python.kind, python.output, python.line) == ("python", "1\n", 1)
    assert (reasoned.reason, reasoned.kind) == ("a reason", "")
    assert console.steps() == [("refsim a      b", "one\n"), ("refsim c", "")]
    assert (loose.reason, loose.kind) == (None, "")


@pytest.mark.parametrize("text", ["import nothing_of_that_name\n", "print(2)\n"])
def test_a_block_that_does_not_hold_is_seen(text: str, folder: Path) -> None:
    example = Example("page.md", 1, "python", text, output="1\n")
    with pytest.raises(AssertionError):
        assert all(same(shown, printed) for _, shown, printed in run(example))
