"""Of each sweep `quick` runs a few cases, and `ci` as many as a mark asks for; the end of a run says what was left out.

A sweep is a test with more parameter sets than its profile runs: `CASES` in quick, in ci the number of a mark
`sampled(count, reason)`, without which ci runs them all. Which of them run depends on nothing but their order: first those with
values of parameters that no case before has, from places all over the list. Whole are tests that `tests/mutants.toml` names
(where a row names one parameter set, that one runs beside the others), those of `tests/whole.toml`, files and tests that the
command line names, and runs that choose by -k or -m.
"""

import tomllib
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

CASES = 3
GOLDEN = 0.6180339887498949
"""Multiples of it, less their whole part, lie evenly in 0..1 however many there are, and repeat with no period of a product."""
ROWS = Path(__file__).with_name("mutants.toml")
WHOLE = Path(__file__).with_name("whole.toml")
LEFT = "refsim_left"


def spread(sets: Sequence[Mapping[str, int]], count: int) -> list[int]:
    """The places of `count` parameter sets, in their order; each set says which value, by number, every parameter has.

    Of 2 x 4 sets the first two differ in both parameters, and four have all values of both: `spread(sets, 4)` is [0, 2, 5, 7].
    """
    places = sorted(range(len(sets)), key=lambda place: place * GOLDEN % 1)
    pairs = [frozenset(each.items()) for each in sets]
    seen: set[tuple[str, int]] = set()
    kept: list[int] = []
    while places and len(kept) < count:
        best = max(places, key=lambda place: len(pairs[place] - seen))
        places.remove(best)
        kept.append(best)
        seen |= pairs[best]
    return sorted(kept)


def named_in(rows: Path) -> frozenset[str]:
    """Files, tests and parameter sets that rows of mutants.toml name."""
    topics = tomllib.loads(rows.read_text("utf-8"))
    return frozenset(test for topic in topics.values() for row in topic.values() for test in row["tests"])


def thin_in(table: Path) -> frozenset[str]:
    """Tests that whole.toml has, whatever the reason."""
    return frozenset(test for tests in tomllib.loads(table.read_text("utf-8")).values() for test in tests)


def cases_of(test: str, case: pytest.Item, profile: str, named: Collection[str]) -> tuple[int | None, str]:
    """How many cases of a test a profile runs, and why no more; None where it runs all.

    `named` has node IDs of files, tests and single cases.
    """
    sampled = case.get_closest_marker("sampled")
    if not {test, test.partition("::")[0]}.isdisjoint(named):
        return None, ""
    if profile == "ci":
        return sampled.args if sampled else (None, "")
    return CASES, ""


def left_out(
    items: Sequence[pytest.Item], profile: str, named: Collection[str]
) -> dict[tuple[str, str], list[pytest.Item]]:
    """Of each sweep, with the reason of its mark, the cases that a profile does not run.

    Cases marked for a larger profile are no part of it: they are skipped with the reason of their own mark.
    """
    larger = ("ci", "night") if profile == "quick" else ("night",)
    sweeps: dict[str, list[pytest.Item]] = {}
    for item in items:
        if hasattr(item, "callspec") and not any(item.get_closest_marker(mark) for mark in larger):
            sweeps.setdefault(item.nodeid.partition("[")[0], []).append(item)
    found = {}
    for test, cases in sweeps.items():
        count, reason = cases_of(test, cases[0], profile, named)
        if count is not None and len(cases) > count:
            kept = {cases[place] for place in spread([case.callspec.indices for case in cases], count)}
            found[test, reason] = [case for case in cases if case not in kept and case.nodeid not in named]
    return found


class Sweeps:
    """The hooks of a run. Workers of a parallel run choose alike, and tell the one that reports."""

    def __init__(self, profile: str) -> None:
        self.profile = profile
        self.left: dict[str, int] = {}

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        if config.option.keyword or config.option.markexpr:
            return
        asked = {config.invocation_params.dir / argument.partition("::")[0] for argument in config.args}
        gone = left_out(
            [item for item in items if item.path not in asked], self.profile, named_in(ROWS) | thin_in(WHOLE)
        )
        if gone:
            out = {item for cases in gone.values() for item in cases}
            items[:] = [item for item in items if item not in out]
            config.hook.pytest_deselected(items=[*out])
        self.left = {f"{test}: {reason}" if reason else test: len(cases) for (test, reason), cases in gone.items()}
        if hasattr(config, "workeroutput"):
            config.workeroutput[LEFT] = self.left

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        self.left = self.left or getattr(node, "workeroutput", {}).get(LEFT, {})

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """One line for all sweeps; in ci one more for each, whose reason is its own."""
        if self.left:
            count = f"{sum(self.left.values()):,} cases of {len(self.left):,} sweeps were left out"
            larger, of = ("ci", f" of more than {CASES}") if self.profile == "quick" else ("night", "")
            if of == "":
                for test, number in self.left.items():
                    terminalreporter.write_line(f"LEFT [{number}] {test}: --refsim-profile=night")
            terminalreporter.write_line(
                f"{self.profile}: {count.replace(' sweeps', f' sweeps{of}')}: "
                f"--refsim-profile={larger} runs them all, and so does a run of their file"
            )
