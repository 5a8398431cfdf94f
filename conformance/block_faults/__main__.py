"""Tries the field's mistakes in the kernels of block scaling; prints the table, writes the page of it."""

import argparse
import multiprocessing
import sys
from concurrent.futures import ProcessPoolExecutor

from conformance.block_faults.mutants import BY_ID
from conformance.block_faults.page import lines, suspect
from conformance.block_faults.results import record, recorded, tried_by_id, write_page


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m conformance.block_faults", description=__doc__)
    parser.add_argument("only", nargs="*", metavar="ID", help="mutants to try again; all of them if left out")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument(
        "--page", action="store_true", help="only write the page and print the table of what is recorded"
    )
    given = parser.parse_args()
    if unknown := set(given.only) - set(BY_ID):
        parser.error(f"no mutant {', '.join(sorted(unknown))}: one of {', '.join(BY_ID)}")
    results = recorded()
    if not given.page:
        ids = given.only or list(BY_ID)
        with ProcessPoolExecutor(given.jobs, multiprocessing.get_context("spawn")) as pool:
            results |= dict(zip(ids, pool.map(tried_by_id, ids), strict=True))
        record(results)
    write_page()
    results = recorded()
    print("\n".join(lines(results)))
    unlike = [id for id, each in results.items() if not each.is_caught or suspect(BY_ID[id], each) == "NOT NAMED"]
    if unlike:
        print(f"not caught, or not named: {', '.join(unlike)}", file=sys.stderr)
    return 1 if unlike else 0


if __name__ == "__main__":
    sys.exit(main())
