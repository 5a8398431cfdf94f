"""python -m conformance.field_bugs [BUG...] writes conformance/reports/field_bugs.md; with names only these are run again."""

import sys

from conformance.field_bugs.catalogue import read_bugs
from conformance.field_bugs.page import PAGE, page, section, sections_of


def main(names: list[str]) -> int:
    bugs = read_bugs()
    strangers = sorted(set(names) - {bug.id for bug in bugs})
    if strangers:
        print(f"no such bug: {', '.join(strangers)}; there are {', '.join(bug.id for bug in bugs)}", file=sys.stderr)
        return 2
    kept = sections_of(PAGE.read_text("utf-8")) if names and PAGE.exists() else {}
    for bug in bugs:
        if not names or bug.id in names or bug.id not in kept:
            print(bug.id, file=sys.stderr)
            kept[bug.id] = section(bug)
    PAGE.write_text(page(kept), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
