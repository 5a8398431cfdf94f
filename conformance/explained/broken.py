"""Asks explain-diff about the broken kernels of this project, as a user would, and holds it to `broken.toml`."""

import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from conformance.explained.broken_kernels import Broken, all_broken
from conformance.explained.ways import Pairs
from conformance.newcomer import trials as newcomer
from refsim.causes import DiffExplanation, explain_diff
from refsim.compare.code_line import codes_of
from refsim.device import Device
from refsim.device import open as open_device
from refsim.errors import RefsimError
from refsim.kernels import Bounded, Kernel
from refsim.testing import explain_problem, laws
from refsim.testing.explained import DECLARED

TABLE = Path(__file__).with_name("broken.toml")
PROBLEMS, ENOUGH = 10, 16  # how many problems are tried, and the differing elements with which a problem ends that
SECONDS, CASE_SECONDS = 6.0, 10.0
NAMED_RIGHT, UNNAMED, NAMED_WRONG, HELD_NAMED, LEFT_ALONE, NOT_ASKED, NOT_BUILT = (
    "named right",
    "not named",
    "named otherwise",
    "named, where nothing was to be",
    "rightly not named",
    "no output differs",
    "not built",
)
NEWCOMERS = {
    "saturated-or-propagated-infinity": "saturation",
    "nan-dropped": "NaN dropped or kept",
    "fn-fnuz": "FN / FNUZ",
    "off-by-one-row": "off by one",
    "off-by-one-column": "off by one",
}
"""Classes of `newcomer/bugs.toml` that are called otherwise here; the others are their words without the hyphens."""
ALSO = {"infinity saturated or propagated": "saturation", "NaN dropped or propagated": "NaN dropped or kept"}


@dataclass(frozen=True)
class Called:
    """What a person would call a mistake: any of `names`; none where it is held out; `why` a name or an output is missing."""

    names: tuple[str, ...] = ()
    why: str = ""
    is_shown: bool = True


@cache
def called() -> dict[str, Called]:
    """The table, and the mistakes of newcomers, whose list has its own classes."""
    found: dict[str, Called] = {}
    for suite, kinds in tomllib.loads(TABLE.read_text("utf-8")).items():
        for id, names in kinds.get("named", {}).items():
            found[f"{suite}/{id}"] = Called(tuple(names))
        for kind, is_shown in (("held_out", True), ("no_output", False)):
            for id, why in kinds.get(kind, {}).items():
                found[f"{suite}/{id}"] = Called((), why, is_shown)
    for bug in newcomer.read_bugs():
        name = NEWCOMERS.get(bug.cause, bug.cause.replace("-", " "))
        is_known = bug.cause in newcomer.SUSPECTED
        found[f"newcomer/{bug.id}"] = Called((name,) if is_known else (), bug.cause, bug.expected == "bits")
    return found


@dataclass(frozen=True)
class Shown:
    """The problem on which a mistake shows most, of the first few, and the outputs there; or why none differs."""

    problem: Any = None
    outputs: Any = None
    differing: int = 0
    ended: str = ""


def shown(
    kernel: Kernel, problems: Iterable[Any], device: Device, *, ends: bool = False, of_codes: bool = True
) -> Shown:
    """`ends`: the mistake is one that a run ends in, so that the first run that does is all.

    `of_codes`: outputs of integers do not count.
    """
    best = Shown()
    for problem in list(problems)[:PROBLEMS]:
        try:
            seen = laws.observe(kernel, problem, device)
        except RefsimError as error:
            best = best if best.differing else Shown(ended=error.code)
            if ends:
                break
            continue
        numbers = kernel.output_formats(problem)
        count = sum(int(each.count) for each in seen.mismatches if numbers.get(each.name) or not of_codes)
        if count > best.differing:
            best = Shown(problem, seen.outputs, count)
        if count >= ENOUGH:
            break
    return best


def by_files(broken: Broken, kernel: Kernel, found: Shown, device: Device) -> dict[str, DiffExplanation]:
    """Each output that differs, beside the right one and the operands: as files would be asked about."""
    assert broken.ways is not None
    right = kernel.expected(found.problem, device.target)
    pairs = {}
    for name, format in kernel.output_formats(found.problem).items():
        if format and not isinstance(right[name], Bounded):
            both = (codes_of(np.asarray(each)) for each in (found.outputs[name], right[name]))
            pairs[name] = tuple(each.reshape(np.shape(right[name])) for each in both)
    said: dict[str, DiffExplanation] = {}
    for name, (mine, right_one) in pairs.items():
        if (mine == right_one).all() or ("q" in said and name == "scales"):  # which were asked about beside their codes
            continue
        format = kernel.output_formats(found.problem)[name]
        got, want, ways = broken.ways(found.problem, name, mine, right_one, pairs)
        try:
            said[name] = explain_diff(got, want, format, seconds=SECONDS, **ways)
        except RefsimError:  # the operands do not fit this output: two files are all there is
            said[name] = explain_diff(got, want, format, seconds=SECONDS)
    if set(said) == {"scales"} and not said["scales"].named and "q" in pairs:  # right codes beside them say more
        got, want, ways = broken.ways(found.problem, "q", *pairs["q"], pairs)
        said["scales"] = explain_diff(got, want, kernel.output_formats(found.problem)["q"], seconds=SECONDS, **ways)
    if (
        set(said) == {"q"}
        and "scales" in pairs
        and not said["q"].named
        and (pairs["scales"][0] != pairs["scales"][1]).any()
    ):
        return each_alone(broken, kernel, found, pairs) or said
    return said


def each_alone(broken: Broken, kernel: Kernel, found: Shown, pairs: Pairs) -> dict[str, DiffExplanation]:
    """Codes and scales that no cause explains together, where one name explains both alone; nothing where none does."""
    assert broken.ways is not None
    said = {}
    for name, (mine, right) in pairs.items():
        got, want, ways = broken.ways(found.problem, name, mine, right, pairs)
        alone = {key: replace(given, scales=None, want_scales=None) for key, given in ways.items()}
        format = kernel.output_formats(found.problem)[name]
        said[name] = explain_diff(got, want, format, seconds=SECONDS, **alone)
    return said if set.intersection(*(set(names_of([each])) for each in said.values())) else {}


def names_of(said: Iterable[DiffExplanation]) -> tuple[str, ...]:
    """What is named of all outputs: families, two together joined; a mistake that the kernel declares in its own words.

    Of two together, one that changes no bit by itself is no difference: a way to share K that both outputs may have.
    """
    names = []
    for found in said:
        for each in found.named:
            seen = [cause for cause in each.causes if cause not in found.unseen] or each.causes
            names.append("+".join(map(_name, seen)))
    return tuple(dict.fromkeys(names))


def _name(cause: Any) -> str:
    name = cause.says if cause.family == DECLARED else str(cause.family)
    return ALSO.get(name, name.replace("off-by-one row", "off by one").replace("off-by-one column", "off by one"))


def verdict_on(wanted: Called, names: tuple[str, ...]) -> str:
    if not wanted.names:
        return HELD_NAMED if names else LEFT_ALONE
    return NAMED_RIGHT if set(wanted.names) & set(names) else NAMED_WRONG if names else UNNAMED


def asked(name: str) -> dict[str, Any]:
    """One broken kernel: what it is called, what explain-diff named, the verdict and the processor time of the question."""
    try:
        return _asked(name)
    except ImportError as error:  # Triton or Numba, which some kernels are written in
        return {"name": name, "called": [], "why": str(error), "verdict": NOT_BUILT, "named": [], "seconds": 0.0}
    except RefsimError as error:  # what is refused is not named; the report says so
        row = {"name": name, "called": list(called()[name].names), "refused": str(error), "named": [], "seconds": 0.0}
        return row | {"verdict": verdict_on(called()[name], ())}


def _asked(name: str) -> dict[str, Any]:
    broken, wanted = all_broken().get(name), called()[name]
    row: dict[str, Any] = {"name": name, "called": list(wanted.names), "why": wanted.why}
    if broken is None:  # `refsim simulate` shows it in conformance/reports/field_bugs.md; there is no oracle
        return row | {"verdict": NOT_ASKED, "named": [], "seconds": 0.0}
    with tempfile.TemporaryDirectory(prefix="refsim-broken-") as folder:
        kernel = broken.made(Path(folder))
        device = open_device("sim", broken.target or newcomer.target_of(kernel))
        found = shown(
            kernel, broken.problems(kernel), device, ends=not wanted.is_shown, of_codes=broken.ways is not None
        )
        row |= {"differing": found.differing, "ended": found.ended}
        if not found.differing:
            return row | {"verdict": NOT_ASKED, "named": [], "seconds": 0.0}
        started = time.process_time()
        ways = broken.ways or broken.also
        said = {} if ways is None else by_files(replace(broken, ways=ways), kernel, found, device)
        if broken.ways is None and not names_of(said.values()):
            said = explain_problem(kernel, found.problem, device, seconds=CASE_SECONDS)
        row["seconds"] = round(time.process_time() - started, 1)
        row["outputs"] = {key: [str(each.outcome), each.differing, each.size] for key, each in said.items()}
        row["says"] = [str(each) for one in said.values() for each in one.named][:3]
    names = names_of(said.values())
    return row | {"named": list(names), "verdict": verdict_on(wanted, names)}


def summary(rows: list[dict[str, Any]], command: str) -> dict[str, Any]:
    """Counts over the kernels, and over each suite; `unlike` are those whose outputs are not as the table says."""
    counts = Counter(row["verdict"] for row in rows)
    named = [row for row in rows if row["called"] and row["verdict"] != NOT_ASKED]
    built = [row for row in rows if row["verdict"] != NOT_BUILT]
    suites: dict[str, Counter[str]] = {}
    for row in rows:
        suites.setdefault(row["name"].partition("/")[0], Counter())[row["verdict"]] += 1
    unlike = [row["name"] for row in built if (row["verdict"] != NOT_ASKED) != called()[row["name"]].is_shown]
    return {
        "command": command,
        "kernels": len(rows),
        "asked": len(built) - counts[NOT_ASKED],
        "with_a_name": len(named),
        "named_right": counts[NAMED_RIGHT],
        "named_right_percent": round(100 * counts[NAMED_RIGHT] / max(1, len(named)), 1),
        "named_otherwise": counts[NAMED_WRONG],
        "held_out": counts[HELD_NAMED] + counts[LEFT_ALONE],
        "held_out_named": counts[HELD_NAMED],
        "no_output": counts[NOT_ASKED],
        "not_built": counts[NOT_BUILT],
        "refused": [row["name"] for row in rows if "refused" in row],
        "unlike_the_table": unlike,
        "suites": {suite: dict(sorted(each.items())) for suite, each in suites.items()},
    }
