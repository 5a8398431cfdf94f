"""Asks refsim about mistakes in fused kernels, of docs/fused-kernels.md and others: python -m conformance.fused_kernels"""

import argparse
from collections import Counter

from conformance.fused_kernels.trials import RIGHT, SECONDS, WRONG, asked, mistakes


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m conformance.fused_kernels", description=__doc__)
    parser.add_argument("--only", nargs="*", default=[], metavar="NAME", help="ids that begin so")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="processor time for each question")
    given = parser.parse_args()
    count: dict[str, Counter[str]] = {}
    for id, mistake in mistakes().items():
        if given.only and not id.startswith(tuple(given.only)):
            continue
        answer = asked(id, given.seconds)
        count.setdefault(mistake.kernel, Counter())[answer.verdict] += 1
        print(f"{id}: {answer.verdict}, {'; '.join(answer.says)[:200]}", flush=True)
    for kernel, found in count.items():
        print(f"{kernel}: {found[RIGHT]} of {found.total()} named, {found[WRONG]} wrong")
    return 0 if not any(found[WRONG] for found in count.values()) else 1


if __name__ == "__main__":
    raise SystemExit(main())
