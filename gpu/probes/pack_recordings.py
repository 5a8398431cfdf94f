"""Packs what recorders wrote, for the tree: arrays as one stream, or, where another chip returned the same, its name and a hash.

    PYTHONPATH=. python3 gpu/probes/pack_recordings.py FOLDER --out conformance/vectors/h200
    PYTHONPATH=. python3 gpu/probes/pack_recordings.py FOLDER --out conformance/vectors/h100 --like h200

The arrays of a recording repeat each other: as single members of an npz file they take three times the room. With `--like` every
word is compared first; recordings that differ are named, and nothing is stored of their file. `--apart cycles.` leaves out what
is no word: cycles that a clock counted.
"""

import argparse
import json
import lzma
import sys
import zipfile
from io import BytesIO
from pathlib import Path

import numpy as np

from refsim.silicon.vectors import Recording, arrays_file, arrays_sha256, recordings, unpack_digests, unpacked


def packed(source: BytesIO) -> bytes:
    """The members of an npz file, stored, in one xz stream."""
    plain = BytesIO()
    with zipfile.ZipFile(source) as members, zipfile.ZipFile(plain, "w", zipfile.ZIP_STORED) as stored:
        for name in members.namelist():
            stored.writestr(zipfile.ZipInfo(name), members.read(name))
    return lzma.compress(plain.getvalue(), preset=9 | lzma.PRESET_EXTREME)


def recorded(folder: Path, stem: str) -> dict[str, Recording]:
    """The recordings of a folder that is none of the tree's."""
    rows = json.loads((folder / f"{stem}.json").read_text("utf-8"))["recordings"]
    found = {}
    with np.load(unpacked(arrays_file(folder, stem)), allow_pickle=False) as stored:
        for name, facts in rows.items():
            arrays = {
                key: unpack_digests(stored[member]) if key == "digests" else stored[member]
                for key, member in facts["arrays"].items()
            }
            found[name] = Recording(name, facts, arrays)
    return found


def differing(one: dict[str, Recording], other: dict[str, Recording]) -> list[str]:
    """The recordings that only one side has, or whose words differ."""
    return sorted(
        name
        for name in one.keys() | other.keys()
        if name not in one
        or name not in other
        or one[name].arrays.keys() != other[name].arrays.keys()
        or any(not np.array_equal(array, other[name].arrays[key]) for key, array in one[name].arrays.items())
    )


def store_equal(folder: Path, stem: str, out: Path, like: str, apart: str | None) -> bool:
    """Writes a sidecar that names the device with the same words; False where they are not the same."""
    whole = recorded(folder, stem)
    left_out = sorted(name for name in whole if apart is not None and name.startswith(apart))
    found = {name: row for name, row in whole.items() if name not in left_out}
    others = differing(found, {name: row for name, row in recordings(stem, like).items() if name not in left_out})
    if others:
        print(f"{stem}: {len(others)} of {len(found)} recordings differ from {like}: {', '.join(others[:8])}")
        return False
    facts = json.loads((folder / f"{stem}.json").read_text("utf-8"))
    kept = {key: value for key, value in facts.items() if key != "recordings"}
    kept |= {"left_out": left_out} if left_out else {}
    kept |= {"equal_to": like, "recordings_equal": len(found), "arrays_sha256": arrays_sha256(found)}
    (out / f"{stem}.json").write_text(json.dumps(kept, indent=1) + "\n", "utf-8")
    words = sum(array.size for each in found.values() for array in each.arrays.values())
    print(f"{stem}: {len(found)} recordings, {words:,} stored numbers, each as {like} has it")
    return True


def store_packed(folder: Path, stem: str, out: Path) -> None:
    """Writes arrays and sidecar; a file of the same name that was not packed goes."""
    content = packed(unpacked(arrays_file(folder, stem)))
    text = (folder / f"{stem}.json").read_text("utf-8")
    (out / f"{stem}.npz.xz").write_bytes(content)
    (out / f"{stem}.json").write_text(text, "utf-8")
    (out / f"{stem}.npz").unlink(missing_ok=True)
    print(f"{stem}: {len(content):,} bytes")


def main() -> int:
    parser = argparse.ArgumentParser(description="pack recordings for the tree")
    parser.add_argument("folder", type=Path, help="what recorders wrote")
    parser.add_argument("--out", type=Path, required=True, help="the folder of a device's vectors")
    parser.add_argument("--like", help="the device whose recordings these are to be equal to")
    parser.add_argument("--apart", help="how the names of recordings begin that hold times")
    parser.add_argument("--only", help="one recording file by its stem")
    options = parser.parse_args()
    stems = sorted(file.stem for file in options.folder.glob("*.json") if options.only in (None, file.stem))
    if not stems:
        print(f"{options.folder}: no recording is there", file=sys.stderr)
        return 3
    options.out.mkdir(parents=True, exist_ok=True)
    if options.like is None:
        for stem in stems:
            store_packed(options.folder, stem, options.out)
        return 0
    stored = [store_equal(options.folder, stem, options.out, options.like, options.apart) for stem in stems]
    return 0 if all(stored) else 1


if __name__ == "__main__":
    sys.exit(main())
