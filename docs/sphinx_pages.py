"""Write the pages that the site adds to this folder: every public module, error code and report, and the gallery.

A build writes them into docs/api, docs/errors, docs/reports and docs/gallery, which are not committed. Their content comes from
the modules, from the source that raises an error, from the reports and from the commands that draw.
"""

import importlib
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

from report_pages import linked, report_pages, whole_pages
from sphinx.application import Sphinx

from refsim.cli import main
from refsim.cli.answers.codes import checks, codes, meaning, sample
from refsim.errors import code_table
from refsim.ptx.findings.examples import EXAMPLES

HERE = Path(__file__).parent
GOLDEN = HERE.parent / "tests" / "golden"
MODULES = (
    "refsim",
    "refsim.formats",
    "refsim.conversions",
    "refsim.files",
    "refsim.scaling",
    "refsim.layouts",
    "refsim.numerics",
    "refsim.oracles",
    "refsim.compare",
    "refsim.kernels",
    "refsim.ptx",
    "refsim.device",
    "refsim.testing",
    "refsim.testing.adapters",
)
DRAWINGS = {
    "The 128-byte swizzle, an 8 x 64 bf16 tile: byte and bank of each element": "swizzle 128B --tile 8x64 -t bf16",
    "The 64-byte swizzle of an FP8 tile": "swizzle 64B --tile 8x64 -t e4m3",
    "Fragment D of a warpgroup's FP8 product": "layout show wgmma.m64n8k32.e4m3.d",
    "A of mma.sync m16n8k16 in bf16": "layout show mma.m16n8k16.bf16.a",
    "B of mma.sync m16n8k32 in FP8": "layout show mma.m16n8k32.e4m3.b",
    "Four 8 x 8 matrices after ldmatrix, transposed": "layout show ldmatrix.m8n8.x4.b16.trans",
    "D of a warpgroup under the 128-byte swizzle, by bank": "layout show wgmma.m64n128k32.e4m3.d --memory 128B --by bank",
    "Scales of NVIDIA's block formats as the hardware wants them": "scales show nvidia_128x4 --shape 128x4 --view hardware",
}


def written(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.is_file() or path.read_text("utf-8") != text:
        path.write_text(text, "utf-8")


def api() -> Iterator[tuple[str, str]]:
    listed = "\n".join(MODULES)
    yield (
        "api/index.md",
        f"# API reference\n\nThese modules are public. All other modules may change.\n\n```{{toctree}}\n{listed}\n```\n",
    )
    shown: set[str] = set()
    for name in MODULES:
        module = importlib.import_module(name)
        again = "\n   :no-index:" if name == "refsim" else ""  # its names are those of the modules below
        elsewhere = {each for each in getattr(module, "__all__", ()) if _home(getattr(module, each)) not in MODULES}
        if name != "refsim" and (twice := sorted(elsewhere & shown)):
            again += f"\n   :exclude-members: {', '.join(twice)}"  # of a module that is not public: shown where it came first
        shown |= elsewhere if name != "refsim" else set()
        yield f"api/{name}.md", f"# {name}\n\n```{{eval-rst}}\n.. automodule:: {name}{again}\n```\n"


def _home(thing: object) -> str:
    return str(getattr(thing, "__module__", ""))


def transcripts() -> dict[str, str]:
    """A recorded run that ends with each error, by its code."""
    found: dict[str, str] = {}
    for path in sorted(GOLDEN.glob("error-*.txt")):
        text = path.read_text("utf-8")
        if code := re.search(r"^\[([a-z0-9-]+)\]", text, re.MULTILINE):
            found.setdefault(code[1], text)
    return found


def errors() -> Iterator[tuple[str, str]]:
    known, runs = codes(), transcripts()
    rows = [f"| [{code}]({code}.md) | {_kind(code)} | {_plain(meaning(code))} |" for code in known]
    table = "\n".join(["| code | kind | means |", "|---|---|---|", *rows])
    yield (
        "errors/index.md",
        "# Error codes\n\nThe table lists every code of an error or a finding. `refsim explain CODE` prints the same text "
        "and also takes a code\nof refsim 0.1.\n\n"
        f"{table}\n",
    )
    for code in known:
        yield f"errors/{code}.md", "\n".join(_page(code, runs.get(code) or sample(code)))


def _kind(code: str) -> str:
    return checks()[code].severity if code in checks() else "error"


def _plain(text: str) -> str:
    return re.sub(r"([\\`*_|<>\[\]$])", r"\\\1", text.replace("\n", " "))


def _page(code: str, run: str) -> Iterator[str]:
    yield f"---\norphan: true\n---\n\n# {code}\n"  # reached from the index: there are too many for the sidebar
    if code in checks():
        row = checks()[code]
        yield f"A {row.severity} of a launch: {_plain(row.finds)}.\n"
        example = EXAMPLES[code]
        yield f"Fix: {_plain(example.fix)}.\n"
        yield f"```cuda\n{example.lines.rstrip()}\n```\n"
        yield "A line with `// wrong` makes the mistake. A line with `// right` replaces it, or was missing.\n"
        yield "[When it fails](../when-it-fails.md) explains such findings, [checks](../reports/checks.md) lists them all.\n"
    else:
        yield f"{_plain(meaning(code))}\n"
        if was := code_table()[code].get("was"):
            yield f"Codes of refsim 0.1 that it replaces: {', '.join(f'`{each}`' for each in was.split())}.\n"
    if run:
        yield f"\nExample:\n\n```text\n{run.rstrip()}\n```"
    yield ""


def gallery() -> Iterator[tuple[str, str]]:
    lines = ["# Gallery\n\nThe command above each drawing writes it with `-o FILE.svg`.\n"]
    for number, (title, command) in enumerate(DRAWINGS.items(), 1):
        path = HERE / "gallery" / f"{number}.svg"
        path.parent.mkdir(exist_ok=True)
        if main([*shlex.split(command), "-o", str(path)]):
            raise RuntimeError(f"refsim {command} failed")
        lines.append(f"## {title}\n\n```console\n$ refsim {command} -o drawing.svg\n```\n\n![{title}]({number}.svg)\n")
    yield "gallery/index.md", "\n".join(lines)


def write_pages(app: Sphinx) -> None:
    for pages in (api(), errors(), report_pages(), gallery()):
        for name, text in pages:
            written(HERE / name, text)
    for name, text in whole_pages():
        written(HERE / "_extra" / name, text)


def name_files(app: Sphinx, page: str, source: list[str]) -> None:
    """A link to a report leads to its page of the site; a link to another file becomes its text and the path."""
    if "/" not in page:  # pages in folders are made with such links
        source[0] = linked(source[0], HERE / f"{page}.md", f"{page}.md")


def as_written(app: Sphinx, what: str, name: str, thing: object, options: object, lines: list[str]) -> None:
    """Show docstrings as text: `names` as code, indented blocks as typed, nothing as markup of reStructuredText."""
    shown: list[str] = []
    is_block = False
    for line in lines:
        ended = not shown or not shown[-1].strip()
        if line.startswith(" ") and ended and not is_block:
            shown += ["::", ""]
            is_block = True
        elif is_block and line.strip() and not line.startswith(" "):
            shown += [] if ended else [""]
            is_block = False
        shown.append(line if is_block else _escaped(line))
    lines[:] = shown


def _escaped(line: str) -> str:
    pieces = re.split(r"(`[^`]+`)", line)
    return "".join(
        f"`{piece}`" if place % 2 else re.sub(r"([*|\\]|_(?=\W|$))", r"\\\1", piece)
        for place, piece in enumerate(pieces)
    )


def setup(app: Sphinx) -> dict[str, bool]:
    (HERE / "_extra").mkdir(exist_ok=True)  # asked for before anything is written into it
    app.connect("builder-inited", write_pages)
    app.connect("source-read", name_files)
    app.connect("autodoc-process-docstring", as_written)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
