"""Apply the gates of published projects to wrong kernels, and write the report and the README's table."""

import argparse
import multiprocessing
import sys
from concurrent.futures import ProcessPoolExecutor
from functools import partial

from conformance.tolerance.mutants import BY_ID
from conformance.tolerance.page import CONTROLS
from conformance.tolerance.results import DEVICES, record, results_of, tried_on, write_pages


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m conformance.tolerance", description=__doc__)
    parser.add_argument("only", nargs="*", metavar="ID", help="mutants to try again; all of them if left out")
    parser.add_argument("--device", choices=DEVICES, default="sim")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--pages", action="store_true", help="only write the pages, from what is recorded")
    given = parser.parse_args()
    if given.pages:
        write_pages()
        return 0
    if unknown := set(given.only) - set(BY_ID):
        parser.error(f"no mutant {', '.join(sorted(unknown))}: one of {', '.join(BY_ID)}")
    ids = given.only or list(BY_ID)
    with ProcessPoolExecutor(given.jobs, multiprocessing.get_context("spawn")) as pool:
        found = dict(zip(ids, pool.map(partial(tried_on, given.device), ids), strict=True))
    for id, result in found.items():
        special = f", {result.special} of the special test cases" if result.special else ""
        print(f"{id}: {result.differing} of {result.total} elements differ{special} {result.finding}".rstrip())
    kept = results_of(given.device) if given.only else {}
    record(given.device, {id: (kept | found)[id] for id in BY_ID if id in kept or id in found})
    write_pages()
    unlike = [id for id in found if found[id].is_caught == (id in CONTROLS)]
    if unlike:
        print(f"a race may go well on a GPU; otherwise unexpected: {', '.join(unlike)}", file=sys.stderr)
    return 1 if unlike and given.device == "sim" else 0


if __name__ == "__main__":
    sys.exit(main())
