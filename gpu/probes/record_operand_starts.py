"""Records from which bytes wgmma reads operands that begin anywhere in a swizzle atom, with every base_offset.

    PYTHONPATH=. python3 gpu/probes/record_operand_starts.py --out conformance/vectors/h200

Needs a GPU of compute capability 9.0 and ptxas. A recording of one operand holds the address of each 16-byte chunk, as
differences along the last axis. A recording of two operands that are shifted apart holds a CRC of each product. Every
launch runs twice; two runs that differ are an error. The probe then says how many
descriptors the model reads otherwise.
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from record_conversions import record_one, sha256, store
from record_copy_arithmetic import chip_facts

import refsim
from conformance.operand_places import NOWHERE, addresses, crcs, places, single_forms, single_words
from refsim.errors import RefsimError
from refsim.silicon.operand_starts import START_FORMS, STEM, StartForm, paired_words


def twice(form: StartForm, run: Callable[[Any], NDArray[Any]]) -> NDArray[Any]:
    """What two runs in fresh memory agree on."""
    device, runs = refsim.device.open("cuda"), []
    for _ in range(2):
        with device.launcher(form.code) as launcher:
            runs.append(run(launcher))
    if not np.array_equal(runs[0], runs[1]):
        raise SystemExit(f"{form.name}: two runs differ")
    return runs[0]


def record(out: Path, _folder: Path) -> None:
    """Every operand alone, then pairs; stored before anything is said of them."""
    began = time.perf_counter()
    arrays: dict[str, NDArray[Any]] = {}
    rows: dict[str, dict[str, Any]] = {}
    for name, form, side, swizzle in single_forms():
        words = single_words(swizzle)
        found = twice(form, lambda launcher: places(launcher, form, side, words))  # noqa: B023 - runs at once
        rows[name] = {"arrays": {"words": f"{name} words", "places": name}, "form": form.name, "side": side}
        arrays |= {f"{name} words": words, name: np.diff(found, prepend=np.uint16(0), axis=-1)}
        print(f"{name}: {(found == NOWHERE).sum()} chunks are not read in one piece", flush=True)
    for form in START_FORMS:
        name, words = f"{form.name}.pairs", paired_words(form)
        products = twice(form, lambda launcher: form.pairs(launcher, words))  # noqa: B023 - runs at once
        rows[name] = {"arrays": {"words": f"{name} words", "crcs": name}, "form": form.name}
        arrays |= {f"{name} words": words, name: crcs(products)}
    print(f"{STEM}: {time.perf_counter() - began:.1f} s")
    hashes = {f"{form.name}.ptx": sha256(form.ptx.encode()) for form in START_FORMS}
    store(out, STEM, arrays, {**chip_facts(), "sha256": hashes, "recordings": rows})
    for name, form, side, _ in single_forms():
        found = np.cumsum(arrays[name], axis=-1, dtype=np.uint16)
        said(name, arrays[f"{name} words"], found, lambda words: addresses(form, side, words))  # noqa: B023
    for form in START_FORMS:
        name = f"{form.name}.pairs"
        said(name, arrays[f"{name} words"], arrays[name][:, None], lambda words: crcs(form.predicted(words))[:, None])  # noqa: B023


def said(name: str, words: NDArray[Any], got: NDArray[Any], model: Callable[[NDArray[Any]], NDArray[Any]]) -> None:
    """Prints of a recording how many descriptors the model reads otherwise, and how many it refuses."""
    differing, refused = 0, 0
    for at in range(len(words)):
        try:
            differing += bool((model(words[at : at + 1]) != got[at]).any())
        except RefsimError:
            refused += 1
    print(f"{name}: of {len(words)}, the model reads {differing} otherwise and refuses {refused}", flush=True)


if __name__ == "__main__":
    record_one("operands of wgmma that begin anywhere in an atom", record)
