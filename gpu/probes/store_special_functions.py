"""Stores what record_special_functions.py brought back, folded: digests of all inputs, results of 16-bit forms.

PYTHONPATH=. python3 gpu/probes/store_special_functions.py FOLDER --out conformance/vectors/h200
"""

import argparse
import json
from pathlib import Path

import numpy as np
from record_conversions import sha256, store

from refsim.silicon.special_functions import STEM, folded


def main() -> None:
    parser = argparse.ArgumentParser(description="store recorded special functions")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    arrays, rows = {}, {}
    for stem in (STEM, f"{STEM}_pairs"):
        content = json.loads((options.folder / f"{stem}.json").read_text())
        found = np.load(options.folder / f"{stem}.npz")
        for form, row in content["recordings"].items():
            kept = {"opcode": row["opcode"], "less": row.get("less", "")}
            if "chunk_digests" in row["arrays"]:
                arrays[form] = folded(found[form])
                rows[form] = {**kept, "chunks_sha256": sha256(found[form].tobytes()), "arrays": {"groups": form}}
            else:
                arrays[form] = found[form]
                rows[form] = {**kept, "arrays": {"results": form}}
    store(options.out, STEM, arrays, {**content, "recordings": rows})


if __name__ == "__main__":
    main()
