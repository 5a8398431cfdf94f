"""Readers of the published sets of dot products: what each file holds, as `refsim.silicon.tensor_witness.DotProducts`.

None of the sets is part of this project; conformance/vectors/published has a sample of each, with the licences.

- `<GPU>_<format>.npz`: `model_validation` of north-numerical-computing/MATLAB-tensor-core at b12b5a7 (Khattak and Mikaitis),
  32 sets of 5,000. `a` and `b` are uint32 [5000, K], the operands as float32 words; `c` uint32 [5000]; `d_fp32`
  uint32 [5000]; and where there is an f16 result, `d_fp16`, widened to float32 words. For that one c was first rounded to
  f16, to nearest even.
- `mma_sync_sm89_fp8.json` and `.npz`: `tests/data/hw_mini` of mmaemu 0.1.0, mma.sync of an RTX 4060. "tile" operands are
  matrices, "vector" operands single rows; K beyond that of the instruction is a chain.
- `vectors.json`: validation of sf-tensor/tcgen05 on a B200. Codes of bf16 stand in the upper half of a word. Sparse cases, and
  integers that saturate, are left out: the model has no such instruction here.
"""

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim import encode
from refsim.formats import element_named
from refsim.numerics.rows import Unit
from refsim.silicon.tensor_witness import DotProducts

MATLAB = "north-numerical-computing/MATLAB-tensor-core at b12b5a7"
MMAEMU = "mmaemu 0.1.0"
TCGEN05 = "sf-tensor/tcgen05 at 8fce64d8"
TARGETS = {
    "V100": "sm_70",
    "A100": "sm_80",
    "A2": "sm_86",
    "Ada": "sm_89",
    "L40S": "sm_89",
    "RTX 4060": "sm_89",
    "H100": "sm_90",
    "H200": "sm_90",
    "B200": "sm_100",
}
CHIPS = {"Ada": "RTX 1000 Ada"}
"""The product behind a short name of the sets."""
FORMATS = {"fp16": "f16", "bf16": "bf16", "tf32": "tf32", "E4M3": "e4m3", "E5M2": "e5m2"}
RESULTS = {"d_fp32": "f32", "d_fp16": "f16"}
FP8, FIFTH = "mma_sync_sm89_fp8.json", "vectors.json"


def sets(folder: Path) -> list[Path]:
    """The files of the sets under a folder, in the order of the report; ValueError for a file that is no set."""
    order = list(TARGETS)
    files = sorted(path for path in folder.rglob("*.npz") if path.stem != Path(FP8).stem)
    for file in files:
        chip, _, name = file.stem.partition("_")
        if chip not in TARGETS or name not in FORMATS:
            raise ValueError(f"{file.name}: not <GPU>_<format>.npz of {', '.join(TARGETS)} and {', '.join(FORMATS)}")
    files.sort(key=lambda file: (order.index(file.stem.partition("_")[0]), file.stem))
    return [*files, *folder.rglob(FP8), *folder.rglob(FIFTH)]


def read(file: Path) -> Iterator[tuple[str, DotProducts]]:
    """The dot products of one file, each with the publication that they come from."""
    origin, reader = {FP8: (MMAEMU, warps), FIFTH: (TCGEN05, blocks)}.get(file.name, (MATLAB, columns))
    for each in reader(file):
        yield origin, each


def unit_of(chip: str, type: str, result: str) -> tuple[Unit, bool]:
    """The unit behind a column, and whether it read C: FP8 into f32 on Hopper is a wgmma that was given none."""
    without_c = chip in ("H100", "H200") and type in ("e4m3", "e5m2") and result == "f32"
    return ("wgmma", False) if without_c else ("mma.sync", True)


def columns(file: Path) -> Iterator[DotProducts]:
    """The columns of results of one set of the MATLAB models."""
    chip, _, name = file.stem.partition("_")
    with np.load(file, allow_pickle=False) as stored:
        arrays = {key: np.asarray(stored[key]) for key in stored.files}
    a, b = (encode(arrays[side].view(np.float32), FORMATS[name]) for side in "ab")
    for key, result in RESULTS.items():
        if key in arrays:
            unit, reads_c = unit_of(chip, FORMATS[name], result)
            c, d = (encode(arrays[each].view(np.float32), result) for each in ("c", key))
            types = (FORMATS[name], FORMATS[name], result)
            yield DotProducts(
                CHIPS.get(chip, chip), TARGETS[chip], unit, types, a.shape[1], a, b, c if reads_c else c * 0, d
            )


def warps(file: Path) -> Iterator[DotProducts]:
    """The FP8 products of a warp of an RTX 4060: every element of a tile with its row of A and its row of B."""
    rows = json.loads(file.read_text("utf-8"))
    with np.load(file.with_suffix(".npz"), allow_pickle=False) as stored:
        for row in rows:
            a, b, c, d = (stored[each["key"]] for each in (*map(row["inputs"].get, "abc"), row["expected"]))
            if row["params"]["layout"] == "tile":
                shape = (*d.shape, a.shape[-1])
                a, b = np.broadcast_to(a[..., :, None, :], shape), np.broadcast_to(b[..., None, :, :], shape)
            found = re.search(r"hw_k(\d+)", row["id"])
            types = (row["params"]["fmt_a"], row["params"]["fmt_b"], "f32")
            k = int(found[1]) if found else min(a.shape[-1], 32)
            a, b = (np.broadcast_to(each, (*d.shape, a.shape[-1])).reshape(d.size, -1) for each in (a, b))
            yield DotProducts("RTX 4060", "sm_89", "mma.sync", types, k, a, b, c.reshape(-1), d.reshape(-1))


def blocks(file: Path) -> Iterator[DotProducts]:
    """The products of tensor memory of a B200: one entry for each kind, its types and its scales."""
    chosen: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in json.loads(file.read_text("utf-8")):
        if not (row["sparse_metadata"] or row["saturate"]):
            key = (row["kind"], row["a_format"], row["b_format"], row["d_type"], row["k"], row["scale_format"])
            chosen.setdefault((*key, row["scale_vec"]), []).append(row)
    for (kind, a_format, b_format, d_format, k, scale_format, blocks_of_a_row), rows in chosen.items():
        scaled: dict[str, Any] = {}
        if scale_format:
            scaled = {
                f"{side}_scale": np.array([row[f"scale_{side}"][:blocks_of_a_row] for row in rows], np.uint8)
                for side in "ab"
            }
            scaled["scale_format"] = {"ue8m0": "e8m0"}.get(scale_format, scale_format)
        types = (a_format, b_format, d_format)
        words = (_codes([row[key] for row in rows], format) for key, format in zip("ab", types, strict=False))
        c, d = (_codes([row[key] for row in rows], d_format) for key in ("c", "expected"))
        yield DotProducts("B200", "sm_100", f"tcgen05.{kind}", types, k, *words, c, d, **scaled)


def _codes(words: Sequence[Any], format: str) -> NDArray[Any]:
    found = np.array(words, np.uint64) >> np.uint64(16 if format == "bf16" else 0)
    kind = element_named(format).code_dtype
    return (found & np.uint64(np.iinfo(kind).max)).astype(kind)
