"""One planted pair asked about, and what many of them come to."""

import statistics
import time
from collections import Counter
from collections.abc import Iterable
from typing import Any

from conformance.explained.pairs import Pair
from refsim.causes import DiffExplanation, explain_diff
from refsim.computations.ways import Family

SHAPES = {str(each) for each in (Family.FACTOR, Family.OFFSET, Family.ORDER, Family.VALUES)}


def asked(pair: Pair, seconds: float | None = None) -> dict[str, Any]:
    """One pair: what was planted, the families that were named, whether that is right, the time."""
    started = time.process_time()
    ways = {"operands": pair.operands, "values": pair.values, "quantized": pair.quantized}
    found = explain_diff(pair.got, pair.want, pair.format, seconds=seconds, **ways)
    took = time.process_time() - started
    families = list(dict.fromkeys("+".join(str(cause.family) for cause in each.causes) for each in found.named))
    return {
        "name": pair.name,
        "planted": None if pair.planted is None else str(pair.planted),
        "outcome": str(found.outcome),
        "named": families,
        "right": is_right(pair, found, families),
        "alone": len(families) == 1,
        "seconds": round(took, 2),
        "large": pair.is_large,
        "quantiser": pair.quantized is not None,
        "untried": found.untried,
    }


def is_right(pair: Pair, found: DiffExplanation, families: Iterable[str]) -> bool:
    """The planted family is among those that reproduce every bit; none but a shape where nothing was to be named.

    A shape says what the outputs show, and names no mistake.
    """
    if pair.planted is None:
        return not found.differing and not found.named
    return str(pair.planted) in families if pair.planted else bool(found.differing) and set(families) <= SHAPES


def summary(rows: list[dict[str, Any]], command: str) -> dict[str, Any]:
    """Counts over the pairs, and the median of the processor time at 128 x 128 x 512."""
    planted = [row for row in rows if row["planted"]]
    times = [row["seconds"] for row in rows if row["large"] and row["outcome"] == "explained"]
    of_quantisers = [row["seconds"] for row in rows if row["quantiser"]]
    families = Counter(row["planted"] for row in planted)
    right = Counter(row["planted"] for row in planted if row["right"])
    return {
        "command": command,
        "planted": len(planted),
        "named_right": sum(row["right"] for row in planted),
        "named_right_and_nothing_else": sum(row["right"] and row["alone"] for row in planted),
        "held_out": sum(row["planted"] == "" for row in rows),
        "held_out_named": sum(row["planted"] == "" and bool(set(row["named"]) - SHAPES) for row in rows),
        "equal": sum(row["planted"] is None for row in rows),
        "equal_named": sum(row["planted"] is None and not row["right"] for row in rows),
        "quantisers": sum(row["quantiser"] for row in rows),
        "median_seconds_128x128x512": round(statistics.median(times), 2) if times else None,
        "median_seconds_of_quantisers": round(statistics.median(of_quantisers), 2) if of_quantisers else None,
        "families": {name: [right[name], count] for name, count in sorted(families.items())},
    }
