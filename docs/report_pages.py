"""Make a page of the site for every report of conformance/reports: Markdown unchanged, JSON as tables.

A report of a bring-up also becomes the page that `refsim bringup -o FILE.html` writes. Only the JSON is committed.
"""

import json
import os
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from refsim.bringup.html_report import page as bringup_page
from refsim.bringup.report import changes_since, read_report

ROOT = Path(__file__).resolve().parents[1]
REPORTS, DOCS = ROOT / "conformance" / "reports", ROOT / "docs"
BASELINE = "h200"
"""The chip with which the bring-ups of the others are compared."""
LONG = 64
"""Characters of a cell before it is cut: a hash is shown by its beginning."""


def place_of(report: Path) -> str:
    """Return the page of a report: reports/h200/bringup.md of h200/bringup.json, or bringup.json.md next to a bringup.md."""
    suffix = ".json.md" if report.suffix == ".json" and report.with_suffix(".md").is_file() else ".md"
    return f"reports/{report.relative_to(REPORTS).with_suffix(suffix).as_posix()}"


def reports() -> list[Path]:
    """Every report, by its folder and name."""
    return sorted(path for path in REPORTS.rglob("*") if path.suffix in (".md", ".json"))


def report_pages() -> Iterator[tuple[str, str]]:
    """Yield name and text of each page, the list of all first."""
    parts = ["# Reports\n\n[Evidence](../evidence.md) summarizes these reports."]
    for title, suffix in (("Accounts and lists", ".md"), ("Data of runs", ".json")):
        parts += [f"\n## {title}\n", "| report | contents |", "|---|---|"]
        parts += [
            f"| [{path.relative_to(REPORTS)}]({place_of(path).removeprefix('reports/')}) | {said(path)} |"
            for path in reports()
            if path.suffix == suffix
        ]
    parts.append("\nThe folder is the chip; `sim` is the simulated GPU. This site makes the pages of data from JSON.\n")
    yield "reports/index.md", "\n".join(parts)
    for path in reports():
        yield (
            place_of(path),
            "---\norphan: true\n---\n\n" + (of_markdown(path) if path.suffix == ".md" else of_json(path)),
        )


def said(path: Path) -> str:
    """The first heading of a page, or what a file of JSON holds and of which device."""
    if path.suffix == ".md":
        return path.read_text("utf-8").partition("\n")[0].lstrip("# ")
    held = json.loads(path.read_text("utf-8"))
    device = held.get("device") or held.get("facts", {}).get("device", "")
    name = device.get("device", device.get("name", "")) if isinstance(device, dict) else device
    return ", ".join(filter(None, (path.stem.replace(".", ": "), str(name))))


def of_markdown(path: Path) -> str:
    """A report in Markdown with the links that the site has."""
    return linked(path.read_text("utf-8"), path, place_of(path))


def linked(text: str, source: Path, page: str) -> str:
    """`text` of the file `source` as the site's `page`: links to reports and to files of docs/ lead there, others are text."""

    def shown(link: re.Match[str]) -> str:
        name, _, anchor = link[2].partition("#")
        target = (source.parent / name).resolve()
        if not target.exists():
            return link[0]  # brackets in code, or a broken link, of which the build warns
        if target.is_relative_to(REPORTS) and target.is_file():
            place = place_of(target)
        elif target.is_relative_to(DOCS) and target.is_file():
            place = target.relative_to(DOCS).as_posix()
        else:
            return f"{link[1]} (`{target.relative_to(ROOT)}`)"
        return f"[{link[1]}]({Path(os.path.relpath(place, Path(page).parent)).as_posix()}{'#' * bool(anchor)}{anchor})"

    return re.sub(r"(?<!!)\[([^\]]*)\]\((?!https?:|#)([^)\s]+)\)", shown, text)


def of_json(path: Path) -> str:
    """A report as tables, and for a bring-up the link to its own page."""
    own = (
        f'\n<a href="{path.stem}.whole.html">The page that the bring-up writes</a>\n'
        if path.name == "bringup.json"
        else ""
    )
    source = f"Made from `conformance/reports/{path.relative_to(REPORTS)}`.\n"
    return f"# {said(path)}\n\n{source}{own}\n" + "\n".join(tables(json.loads(path.read_text("utf-8"))))


def tables(held: Any, title: str = "", depth: int = 2) -> Iterator[str]:
    """An object as a table of its plain values, then each list and object in it under its name."""
    if title:
        yield f"\n{'#' * min(depth, 4)} {title}\n"
    if isinstance(held, dict):
        plain = {name: value for name, value in held.items() if not isinstance(value, dict | list)}
        if plain:
            yield from grid([{"": name, "value": value} for name, value in plain.items()])
        for name, value in held.items():
            if isinstance(value, dict | list) and value:
                yield from tables(value, name, depth + bool(title))
    elif all(isinstance(each, dict) for each in held):
        yield from grid(held)
    else:
        yield "\n".join(f"- {cell(each)}" for each in held)


def grid(rows: list[dict[str, Any]]) -> Iterator[str]:
    """A table of objects: a column for every name that has a value in one of them."""
    names = list(
        dict.fromkeys(
            name for row in rows for name, value in row.items() if value not in (None, "", [], {}) or not name
        )
    )
    yield f"| {' | '.join(names)} |"
    yield "|" + "---|" * len(names)
    for row in rows:
        yield f"| {' | '.join(cell(row.get(name)) for name in names)} |"
    yield ""


def cell(value: Any) -> str:
    """A value in a table: counts with commas, times with three digits, what is long cut."""
    if value is None:
        return ""
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    text = f"{value:.4g}" if isinstance(value, float) else value if isinstance(value, str) else json.dumps(value)
    text = text if len(text) <= LONG or " " in text else f"{text[: LONG // 4]}..."
    return re.sub(r"([\\`*_|<>\[\]$])", r"\\\1", text.replace("\n", " "))


def whole_pages() -> Iterator[tuple[str, str]]:
    """Of each bring-up the page of its own, compared with that of the first chip."""
    first = read_report(REPORTS / BASELINE / "bringup.json")
    for path in sorted(REPORTS.glob("*/bringup.json")):
        report = read_report(path)
        shown = (
            report
            if path.parent.name == BASELINE
            else replace(report, changes=changes_since(first, report.cases, report.facts))
        )
        yield f"reports/{path.parent.name}/bringup.whole.html", bringup_page(shown)
