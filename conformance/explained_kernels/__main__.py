"""Asks refsim about mistakes planted in kernels, and reports how many it names: python -m conformance.explained_kernels"""

import argparse
import json
import multiprocessing
import sys
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from conformance.explained_kernels.trials import RIGHT, SECONDS, asked, controls, planted, summary


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m conformance.explained_kernels", description=__doc__)
    parser.add_argument("-o", "--output", type=Path, help="a Markdown file for the report; the terminal if left out")
    parser.add_argument("--only", nargs="*", default=[], metavar="NAME", help="ids that begin so")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="processor time for each question")
    parser.add_argument("--jobs", type=int, default=1)
    given = parser.parse_args()
    names = [name for name in (*planted(), *controls()) if not given.only or name.startswith(tuple(given.only))]
    command = " ".join(["python -m conformance.explained_kernels", *sys.argv[1:]])
    rows: list[dict[str, Any]] = []
    with ProcessPoolExecutor(given.jobs, multiprocessing.get_context("spawn")) as pool:
        for done in as_completed([pool.submit(asked, name, given.seconds) for name in names]):
            row = done.result()
            print(f"{row['id']}: {row['verdict']}, {row['seconds']} s, {'; '.join(row['says'])[:150]}", flush=True)
            rows = sorted([*rows, row], key=lambda each: names.index(each["id"]))
            if given.output is not None:  # what there is so far, should the machine be taken away
                given.output.write_text(page(summary(rows, command), rows), "utf-8")
    print(json.dumps(summary(rows, command), indent=1))
    return 0 if all(row["verdict"] == RIGHT for row in rows) else 1


def page(found: dict[str, Any], rows: list[dict[str, Any]]) -> str:
    """The report: counts, mistakes, controls."""
    lines = [
        "# Mistakes planted in kernels",
        "",
        f"`{found['command']}`",
        "",
        "Each mistake is a small edit of a right kernel (`conformance/explained_kernels/mistakes.toml`). The kernel runs",
        "one test case on the simulated GPU. `explain_problem` then searches for the cause. A named cause counts as right",
        "if the pattern of the mistake, or else of its kind, occurs in its words. Nothing may be named for a control: a right",
        "kernel, or a kernel whose outputs are changed at random.",
        "",
        "| measure | figure |",
        "|---|---:|",
        *(f"| {name} | {value} |" for name, value in figures(found).items()),
        "",
        "| kind | right | of |",
        "|---|---:|---:|",
        *(f"| {kind} | {right} | {count} |" for kind, (right, count) in found["kinds"].items()),
        "",
    ]
    for title, is_mistake in (("Mistakes", True), ("Controls", False)):
        lines += [
            f"## {title}",
            "",
            "| id | kernel | outcome | seconds | elements that differ | named |",
            "|---|---|---|---:|---|---|",
        ]
        lines += [_line(row) for row in rows if (row["id"] in planted()) == is_mistake]
        lines += [""]
    return "\n".join(lines)


def figures(found: dict[str, Any]) -> dict[str, Any]:
    """The figures at the head of the report, by their names."""
    return {
        "mistakes": found["mistakes"],
        "kernels": found["kernels"],
        "named right": f"{found['right']} ({found['right_percent']} %)",
        f"named right within {SECONDS:g} s of processor time": found["right_in_time"],
        "named wrongly": found["wrong"],
        "not named": found["unnamed"],
        "permutations whose place is named": "{} of {}".format(*found["located"]),
        "controls": found["controls"],
        "controls with a name": len(found["controls_named"]),
        "processor time of the longest question, s": found["longest_seconds"],
    }


def _line(row: dict[str, Any]) -> str:
    differing = ", ".join(f"{name} {count} of {size}" for name, (count, size) in row["outputs"].items())
    said = "; ".join(row["says"]).replace("|", "\\|")
    return f"| {row['id']} | {row['kernel']} | {row['verdict']} | {row['seconds']} | {differing} | {said} |"


if __name__ == "__main__":
    raise SystemExit(main())
