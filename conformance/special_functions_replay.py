"""Every recorded group of the special functions, replayed by their model: python -m conformance.special_functions_replay

    python -m conformance.special_functions_replay [FORM ...] --jobs 16 -o conformance/reports/special_functions.json

A form is named as in conformance/vectors/h200/special_functions.json, or by a pattern (div_*). Each of its 4,096 groups is
recomputed from the operands on and compared with the word that a GPU's results gave. The page has a row for each form and
library, and keeps those that were not asked for. `--library cupy` has the model's own statements computed by a GPU, which NumPy
computes a piece at a time; `--groups 1023:1025` takes some groups, 0:4096:64 every 64th; `--seconds` begins no more after so
long. Ends with 1 if a group differs, with 5 if some were not begun.
"""

import argparse
import fnmatch
import hashlib
import json
import platform
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import refsim
from conformance.array_library import computed_by, library_named
from refsim.formats import BF16, F16, F32, F64, Format
from refsim.numerics.special import SPECIAL_FORMS
from refsim.silicon.special_functions import GROUPS, doubles, recorded, replayed, replayed_pairs
from refsim.silicon.vectors import CHUNK, recordings

Model = Callable[..., NDArray[np.unsignedinteger]]


def _of_doubles(function: Callable[..., Any], lower: bool, words: NDArray[np.uint32]) -> NDArray[np.uint64]:
    bits: NDArray[np.uint64] = function(doubles(words, lower=lower).view(np.uint64))
    return bits


def _by_recording(format: Format, operands: int = 1) -> dict[str, Model]:
    """The forms of a format, by the names that their recordings have."""
    chosen = (form for form in SPECIAL_FORMS if form.format is format and form.operands == operands)
    return {form.instruction.replace(".", "_"): form.words for form in chosen}


SINGLES, DIVISIONS = _by_recording(F32), _by_recording(F32, operands=2)
HALVES = _by_recording(F16) | _by_recording(BF16)
DOUBLES: dict[str, Model] = {
    f"{form}{'' if lower else '_low0'}": partial(_of_doubles, function, lower)
    for form, function in _by_recording(F64).items()
    for lower in (True, False)
}
MODELS = SINGLES | DOUBLES | DIVISIONS
"""The model of every form of 32 and 64 bits, as a function of the words that its recording counts."""


def words(forms: tuple[str, ...], group: int, at_once: int = 1) -> dict[str, int]:
    """The word of a group of each form by its model; divisions of the same pairs are asked for at once."""
    found = {form: replayed(MODELS[form], group, min(at_once, 16)) for form in forms if form not in DIVISIONS}
    of_pairs = [form for form in forms if form in DIVISIONS]
    divided = replayed_pairs([DIVISIONS[form] for form in of_pairs], group, at_once) if of_pairs else []
    return found | dict(zip(of_pairs, divided, strict=True))


def tasks(forms: list[str], groups: range) -> Iterator[tuple[tuple[str, ...], int]]:
    """What is computed at a time: the divisions of a group, or a group of another form; group by group, all forms."""
    divisions = tuple(form for form in forms if form in DIVISIONS)
    units = [*([divisions] if divisions else []), *((form,) for form in forms if form not in DIVISIONS)]
    return ((each, group) for group in groups for each in units)


Words = tuple[int, dict[str, int]]


def by_numpy(forms: list[str], groups: range, jobs: int, seconds: float) -> Iterator[Words]:
    """Groups recomputed by so many processes; none is begun after so many seconds."""
    began, left, waiting = time.monotonic(), tasks(forms, groups), dict[Future[dict[str, int]], int]()
    if jobs == 1:
        yield from ((group, words(each, group)) for each, group in left if time.monotonic() - began < seconds)
        return
    with ProcessPoolExecutor(jobs) as pool:
        while True:
            while len(waiting) < 2 * jobs and time.monotonic() - began < seconds and (task := next(left, None)):
                waiting[pool.submit(words, *task)] = task[1]
            if not waiting:
                return
            for future in wait(waiting, return_when=FIRST_COMPLETED).done:
                yield waiting.pop(future), future.result()


def by_library(library: Any, forms: list[str], groups: range, seconds: float) -> Iterator[Words]:
    """Groups recomputed with another library's arrays; each form once with NumPy's, so that all its tables are there."""
    for form in forms:
        one = np.full((1, CHUNK), 0x3F800001, np.uint32)
        DIVISIONS[form](one, one) if form in DIVISIONS else MODELS[form](one)
    began = time.monotonic()
    with computed_by(library):
        for task in tasks(forms, groups):
            if time.monotonic() - began > seconds:
                return
            yield task[1], words(*task, at_once=64)


def replay(forms: list[str], found: Iterator[Words]) -> dict[str, dict[str, Any]]:
    """How many groups of each form were recomputed, and which of them differ from what was recorded."""
    rows: dict[str, dict[str, Any]] = {form: {"groups": 0, "differing": []} for form in forms}
    wanted = {form: recorded(form).tolist() for form in forms}
    for group, by_form in found:
        for form, word in by_form.items():
            rows[form]["groups"] += 1
            rows[form]["differing"] += [group] if word != wanted[form][group] else []
    return rows


def model_sha256() -> str:
    """Of the files that the results come from."""
    root = Path(refsim.__file__).parent
    paths = [*sorted(root.glob("mufu/*.py")), *sorted(root.glob("numerics/ieee/*.py"))]
    return hashlib.sha256(b"".join(path.read_bytes() for path in paths)).hexdigest()


def chosen(patterns: list[str]) -> list[str]:
    known = recordings("special_functions")
    forms = [form for form in MODELS if form in known]
    unknown = [pattern for pattern in patterns if not fnmatch.filter(forms, pattern)]
    if unknown:
        raise SystemExit(f"no form is called {unknown[0]}; there are {', '.join(forms)}")
    return [form for form in forms if not patterns or any(fnmatch.fnmatch(form, each) for each in patterns)]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="replay recorded special functions by their model")
    parser.add_argument("forms", nargs="*", help="forms or patterns; all without any")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--library", default="numpy", help="whose arrays: numpy, or cupy on a GPU")
    parser.add_argument("--groups", default=f"0:{GROUPS}", help="the first group, the first beyond, a step: 0:4096:64")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no group after so long")
    parser.add_argument("-o", "--out", type=Path, help="the page, JSON, whose rows are replaced")
    given = parser.parse_args(arguments)
    forms, groups = chosen(given.forms), range(GROUPS)[slice(*map(int, given.groups.split(":")))]
    began = time.monotonic()
    if given.library == "numpy":
        library, found = np, by_numpy(forms, groups, given.jobs, given.seconds)
    else:
        library = library_named(given.library)
        found = by_library(library, forms, groups, given.seconds)
    rows = replay(forms, found)
    took = round(time.monotonic() - began)
    facts = {
        "date": datetime.now(UTC).date().isoformat(),
        "seconds": took,
        "library": f"{library.__name__} {library.__version__}",
        "processes": given.jobs,
        "python": platform.python_version(),
        "model_sha256": model_sha256(),
    }
    for form, row in rows.items():
        row["inputs"] = row["groups"] << (22 if form in DIVISIONS else 20)
        print(f"{form:28} {row['groups']:5} groups  {row['inputs']:14,} inputs  {len(row['differing'])} differ")
    print(f"{took} s, {facts['library']}, {given.jobs} processes")
    if given.out:
        page = json.loads(given.out.read_text()) if given.out.exists() else {}
        named = {f"{form} ({library.__name__})": row for form, row in rows.items()}
        page |= {name: {**row, "differing": sorted(row["differing"]), **facts} for name, row in named.items()}
        lines = ",\n".join(f" {json.dumps(form)}: {json.dumps(page[form])}" for form in sorted(page))
        given.out.write_text(f"{{\n{lines}\n}}\n")
    if any(row["differing"] for row in rows.values()):
        return 1
    return 0 if all(row["groups"] == len(groups) for row in rows.values()) else 5


if __name__ == "__main__":
    sys.exit(main())
