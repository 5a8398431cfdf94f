"""A bring-up as one self-contained HTML page, and as JUnit XML, the format that build servers read.

The page has a matrix of all cases first, then differences, then every case. It has no script and fetches nothing; every
text is escaped. It is light or dark as the reader's system is. Tables and style are one line each: to compare two
bring-ups, use their JSON.
"""

from collections.abc import Iterator, Sequence
from html import escape

from refsim.bringup.report import DIFFERS, LEFT_OUT, Case, Report
from refsim.render.junit import document, element, numbers, properties, suite, text
from refsim.testing.verdicts import PASS, UNSUPPORTED

EXPLAINED = "explained"
_KINDS = {PASS: "pass", DIFFERS: "differs", EXPLAINED: "explained", UNSUPPORTED: "unsupported", LEFT_OUT: "notrun"}
_SIGNS = {PASS: "&#10003;", DIFFERS: "&#10007;", EXPLAINED: "&#8776;", UNSUPPORTED: "&#8211;", LEFT_OUT: "&#183;"}
_PARAMETERS = ("length", "order", "c_enters", "fraction", "rounding", "zero_exponent")
_HEADINGS = ("L", "order", "C enters", "F", "rounding", "zero exponent")

STYLE = """
:root { color-scheme: light dark; --ink: #1c1e21; --paper: #fff; --faint: #667; --line: #dde1e6; --panel: #f6f7f9;
  --pass: #1a7f37; --pass-on: #dff3e4; --differs: #c4202b; --differs-on: #fde3e4; --explained: #96600a;
  --explained-on: #fbeccb; --unsupported: #667; --unsupported-on: #e9ebef; --notrun: #667; --notrun-on: transparent }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e6ea; --paper: #14161a; --faint: #9aa0ab; --line: #31353c;
  --panel: #1c1f24; --pass: #57c878; --pass-on: #173922; --differs: #ff7b80; --differs-on: #4a1a1e; --explained: #e8b45a;
  --explained-on: #43310f; --unsupported: #9aa0ab; --unsupported-on: #2b2f36; --notrun: #9aa0ab } }
* { box-sizing: border-box }
body { margin: 0 auto; padding: 2rem 1.5rem 4rem; max-width: 105rem; color: var(--ink); background: var(--paper);
  font: 15px/1.5 system-ui, sans-serif }
h1 { font-size: 1.6rem; margin: 0 0 .3rem } h2 { font-size: 1.15rem; margin: 2.2rem 0 .7rem }
p { margin: .3rem 0 } .faint { color: var(--faint) } code, pre, .mono { font: 13px/1.45 ui-monospace, monospace }
.banner { background: var(--explained-on); color: var(--explained); padding: .4rem .8rem; border-radius: .4rem;
  display: inline-block; font-weight: 600; margin: .4rem 0 }
dl { display: grid; grid-template-columns: repeat(auto-fill, minmax(17rem, 1fr)); gap: .1rem 1.5rem; margin: 1rem 0;
  background: var(--panel); padding: .8rem 1rem; border-radius: .5rem }
dl div { display: flex; gap: .6rem; min-width: 0 } dt { color: var(--faint); white-space: nowrap }
dd { margin: 0; overflow-wrap: anywhere }
.matrix { display: grid; grid-template-columns: max-content 1fr max-content; gap: .7rem 1rem; align-items: start }
.matrix .name { font-weight: 600 } .cells { display: flex; flex-wrap: wrap; gap: 3px }
.cell { width: 1.15rem; height: 1.15rem; border-radius: 3px; text-decoration: none; font-size: .72rem; line-height: 1.15rem;
  text-align: center; border: 1px solid transparent }
.tag { padding: 0 .45rem; border-radius: .8rem; white-space: nowrap; font-size: .85rem }
.pass { color: var(--pass); background: var(--pass-on) } .differs { color: var(--differs); background: var(--differs-on);
  font-weight: 600 } .explained { color: var(--explained); background: var(--explained-on) }
.unsupported { color: var(--unsupported); background: var(--unsupported-on) }
.notrun { color: var(--notrun); background: var(--notrun-on); border: 1px dashed var(--line) }
.wide { overflow-x: auto; border: 1px solid var(--line); border-radius: .5rem }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums }
th { text-align: left; color: var(--faint); font-weight: 500; background: var(--panel); white-space: nowrap }
td, th { padding: .3rem .5rem; border-bottom: 1px solid var(--line); vertical-align: baseline }
tr:last-child td { border-bottom: 0 } tr:target td { background: var(--panel) } .right { text-align: right; white-space: nowrap }
td.text { min-width: 9rem; max-width: 44rem; overflow-wrap: break-word; font-size: .9em } td.name { white-space: nowrap }
td.name:first-child { min-width: 17rem; white-space: normal; overflow-wrap: anywhere }
.difference { border: 1px solid var(--line); border-left: 4px solid var(--differs); border-radius: .4rem; padding: .6rem 1rem;
  margin: .7rem 0; background: var(--panel) } .difference.known { border-left-color: var(--explained) }
.difference pre { overflow-x: auto; margin: .4rem 0 } .legend { display: flex; gap: 1.2rem; flex-wrap: wrap; margin: .8rem 0 0 }
@media (max-width: 46rem) { .matrix { grid-template-columns: 1fr } .matrix .faint { margin-bottom: .6rem } }
""".strip()


def page(report: Report) -> str:
    """Return the whole page."""
    title = escape(report.title)
    banner = '<p class="banner">Simulated: no GPU took part in these results.</p>\n' if report.simulated else ""
    sections = [_missing(report), f"<h1>{title}</h1>\n{banner}<p>{escape(report.verdict)}.</p>"]
    sections += [of(report) for of in (_facts, _matrix, _differences, _changes)]
    sections += [_suite(report, name) for name in _found_first(report)]
    body, style = "\n".join(filter(None, sections)), " ".join(STYLE.split())
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n<title>{title}</title>\n<style>{style}'
        f"</style>\n</head>\n<body>\n{body}\n</body>\n</html>\n"
    )


def _missing(report: Report) -> str:
    """Return the cases that did not run, for the top of the page; empty where all cases ran."""
    if not report.missing:
        return ""
    head, *reasons = map(escape, report.missing)
    listed = "".join(f"<li>{reason}</li>" for reason in reasons)
    return f'<div class="difference"><b>{head}.</b>\n<ul>{listed}</ul></div>'


def _facts(report: Report) -> str:
    rows = "\n".join(
        f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in report.facts.items()
    )
    return f"<dl>\n{rows}\n</dl>"


def _matrix(report: Report) -> str:
    """Return a square for each case, suite by suite; its title names the case, its link leads to the table."""
    rows = []
    for name in report.suites:
        cases = report.of(name)
        squares = "".join(_square(report, case) for case in cases)
        seconds = sum(case.seconds for case in cases)
        passed = sum(case.status == PASS for case in cases)
        rows.append(
            f'<div class="name">{escape(name)}</div><div class="cells">{squares}</div>'
            f'<div class="faint right">{passed} of {len(cases)} pass, {seconds:.1f} s</div>'
        )
    legend = "".join(
        f'<span><span class="tag {kind}">{_SIGNS[name]}</span> {escape(name)}</span>' for name, kind in _KINDS.items()
    )
    return (
        "<h2>Matrix</h2>\n"
        + f'<div class="matrix">\n{chr(10).join(rows)}\n</div>\n<div class="legend faint">{legend}</div>'
    )


def _square(report: Report, case: Case) -> str:
    title = escape(f"{case.name}: {case.shown}")
    return (
        f'<a class="cell {_KINDS[case.shown]}" href="#{_anchor(report, case)}" title="{title}">{_SIGNS[case.shown]}</a>'
    )


def _anchor(report: Report, case: Case) -> str:
    return f"{case.suite}-{report.of(case.suite).index(case)}"


def _differences(report: Report) -> str:
    """Return the section of differences, each as its smallest case."""
    blocks = []
    for case in report.cases:
        if case.difference is None:
            continue
        known = " known" if case.difference.known else ""
        lines = "\n".join(escape(line) for line in case.difference.lines())
        count = f"{case.differing:,} of {case.words:,} words differ. " if case.differing else ""
        blocks.append(
            f'<div class="difference{known}"><span class="tag {_KINDS[case.shown]}">{escape(case.shown)}</span> '
            f"<b>{escape(case.suite)}</b> <code>{escape(case.name)}</code>\n<p>{count}{escape(case.note)}</p>\n"
            f"<pre>{lines}</pre></div>"
        )
    return "<h2>Differences, each as its smallest case</h2>\n" + "\n".join(blocks) if blocks else ""


def _changes(report: Report) -> str:
    if report.changes is None:
        return ""
    if not report.changes:
        return "<h2>Since the baseline</h2>\n<p>Nothing changed.</p>"
    rows = [[escape(change.case), escape(change.before), escape(change.now)] for change in report.changes]
    kinds = ("name", "text", "text")
    return "<h2>Since the baseline</h2>\n" + _table(("what", "before", "now"), kinds, rows)


def _found_first(report: Report) -> list[str]:
    """Return the suites, those with discovered parameters first."""
    return sorted(report.suites, key=lambda name: not any(case.parameters for case in report.of(name)))


def _suite(report: Report, name: str) -> str:
    """Return the table of a suite, without empty columns."""
    cases = report.of(name)
    found = any(case.parameters for case in cases)
    headings = ("case", "status", *(_HEADINGS if found else ()), "words", "differ", "time [s]", "covered", "note")
    kinds = ("name mono", "name", *(("name",) * len(_HEADINGS) if found else ()), *("right",) * 3, "text", "text")
    rows = [list(_cells(case, found)) for case in cases]
    shown = [place for place in range(len(headings)) if any(row[place] for row in rows)]
    anchors = [_anchor(report, case) for case in cases]
    label = "simulated " if report.simulated else ""
    columns = [headings[place] for place in shown], [kinds[place] for place in shown]
    chosen = [[row[place] for place in shown] for row in rows]
    return f"<h2>{escape(label + name)}</h2>\n" + _table(*columns, chosen, anchors)


def _cells(case: Case, found: bool) -> Iterator[str]:
    """Yield the cells of a case as HTML; `found` adds the discovered parameters."""
    yield escape(case.name)
    yield f'<span class="tag {_KINDS[case.shown]}">{escape(case.shown)}</span>'
    if found:
        values = [case.parameters.get(name) for name in _PARAMETERS]
        yield from (escape("unseen" if value is None else str(value)) for value in values)
    yield from (f"{case.words:,}", f"{case.differing:,}" if case.differing else "", f"{case.seconds:.2f}")
    yield escape(case.coverage)
    yield escape(case.note)


def _table(
    headings: Sequence[str], kinds: Sequence[str], rows: Sequence[Sequence[str]], anchors: Sequence[str] = ()
) -> str:
    """Return a table of cells that are HTML already."""
    head = "".join(
        f'<th scope="col"{_right(kind)}>{escape(each)}</th>' for each, kind in zip(headings, kinds, strict=True)
    )
    lines = []
    for number, row in enumerate(rows):
        start = f'<tr id="{escape(anchors[number])}">' if anchors else "<tr>"
        lines.append(
            start + "".join(f'<td class="{kind}">{cell}</td>' for kind, cell in zip(kinds, row, strict=True)) + "</tr>"
        )
    body = "".join(lines)
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _right(kind: str) -> str:
    return ' class="right"' if kind == "right" else ""


def junit(report: Report) -> str:
    """Return the XML text: a suite of tests for each suite, a failure for each unexplained difference.

    An explained difference passes with its explanation as output. Unsupported cases and cases that were not run are
    skipped. A case that a bug of refsim prevented from running is an error.
    """
    suites, everything = [], []
    for name in report.suites:
        label, cases = f"simulated {name}" if report.simulated else name, report.of(name)
        written = [_case(case, label) for case in cases]
        suites.append(suite(label, written, properties(report.facts), time=_seconds(cases)))
        everything += written
    return document(*suites, name=report.title, **numbers(everything), time=_seconds(report.cases))


def _seconds(cases: tuple[Case, ...]) -> str:
    return f"{sum(case.seconds for case in cases):.3f}"


def _case(case: Case, label: str) -> str:
    """Return the XML element of one case."""
    lines = "\n".join(case.difference.lines() if case.difference else ([case.note] if case.note else []))
    inner = ""
    if case.unexplained:
        inner = element("failure", text(lines), message=f"{case.differing} of {case.words} words differ")
    elif case.bug:
        inner = element("error", message=case.note)
    elif case.status in (UNSUPPORTED, LEFT_OUT):
        inner = element("skipped", message=f"{case.status}: {case.note}")
    elif case.status == DIFFERS or lines:
        inner = element("system-out", text(lines))
    return element("testcase", inner, classname=label, name=case.name, time=_seconds((case,)))
