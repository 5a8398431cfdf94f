"""The quick profile runs a few cases of each sweep; the others are left to `--refsim-profile=ci`, and the end of a run says how many.

A sweep is a test with more than `CASES` parameter sets. Which of them run depends on nothing but their order: values of every
parameter come first that no case before has, places all over the list before neighbours. Whole are: tests that
`tests/mutants.toml` names (a parameter set that a row names is among those that run), tests marked `whole(reason)`, files and
tests that the command line names, and runs that choose by -k or -m.
"""

import tomllib
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

CASES = 4
GOLDEN = 0.6180339887498949
"""Multiples of it, less their whole part, lie evenly in 0..1 however many there are, and repeat with no period of a product."""
ROWS = Path(__file__).with_name("mutants.toml")
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


def left_out(items: Sequence[pytest.Item], named: Collection[str]) -> dict[str, list[pytest.Item]]:
    """Of each sweep the cases that the quick profile does not run. `named` are node IDs: of files, tests or single cases.

    Cases marked for a larger profile are no part of it: they are skipped with the reason of their mark.
    """
    sweeps: dict[str, list[pytest.Item]] = {}
    for item in items:
        if hasattr(item, "callspec") and not any(item.get_closest_marker(mark) for mark in ("ci", "night")):
            sweeps.setdefault(item.nodeid.partition("[")[0], []).append(item)
    found = {}
    for test, cases in sweeps.items():
        of_the_file = test.partition("::")[0]
        if len(cases) <= CASES or {test, of_the_file} & {*named} or cases[0].get_closest_marker("whole"):
            continue
        kept = {cases[place] for place in spread([case.callspec.indices for case in cases], CASES)}
        found[test] = [case for case in cases if case not in kept and case.nodeid not in named]
    return found


class Sweeps:
    """The hooks of a run in the quick profile. Workers of a parallel run choose alike, and tell the one that reports."""

    def __init__(self) -> None:
        self.left: dict[str, int] = {}

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        if config.option.keyword or config.option.markexpr:
            return
        asked = {config.invocation_params.dir / argument.partition("::")[0] for argument in config.args}
        gone = left_out([item for item in items if item.path not in asked], named_in(ROWS))
        if gone:
            out = {item for cases in gone.values() for item in cases}
            items[:] = [item for item in items if item not in out]
            config.hook.pytest_deselected(items=[*out])
        self.left = {test: len(cases) for test, cases in gone.items()}
        if hasattr(config, "workeroutput"):
            config.workeroutput[LEFT] = self.left

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        self.left = self.left or getattr(node, "workeroutput", {}).get(LEFT, {})

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if self.left:
            terminalreporter.write_line(
                f"quick: {sum(self.left.values()):,} cases of {len(self.left):,} sweeps, tests with more than {CASES} parameter "
                "sets, were left out: --refsim-profile=ci runs them all, and so does a run of one file"
            )
