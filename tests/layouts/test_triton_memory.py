"""Tiles and bank conflicts against Triton's own linear layouts and conflict counts, asked live."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from refsim.layouts.banks import bank_conflicts
from refsim.layouts.tiles import tile
from tests import triton_versions

PROGRAM = Path(__file__).with_name("triton_memory.py")


@pytest.fixture(scope="module")
def told() -> dict[str, list[dict[str, Any]]]:
    """What Triton says; its absence fails in CI and is a stated reason elsewhere."""
    if find_spec("triton") is None:
        if os.environ.get("CI") == "true":
            pytest.fail("needed in CI: triton")
        pytest.skip("triton is not installed: nothing to compare with")
    triton_versions.since(triton_versions.MEMORY)
    done = subprocess.run([sys.executable, str(PROGRAM)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    result: dict[str, list[dict[str, Any]]] = json.loads(done.stdout.splitlines()[0])
    return result


def spanned(bases: list[list[int]]) -> NDArray[np.int64]:
    """Every point of a linear layout: index i is the XOR of the bases of its set bits."""
    points = np.zeros((1, 2), np.int64)
    for base in bases:
        points = np.concatenate([points, points ^ np.array(base)])
    return points


def test_tiles_are_nvmma_shared(told: dict[str, list[dict[str, Any]]]) -> None:
    """Triton puts the atoms of an MN-major tile along K first."""
    wrong = []
    for case in told["tiles"]:
        shape, size = tuple(case["shape"]), case["bytes"]
        atom_bytes = 8 * case["span"]
        strides = {"k_stride_bytes": atom_bytes, "mn_stride_bytes": shape[1] // 8 * atom_bytes}
        made = tile(
            "MN" if case["transposed"] else "K",
            f"{case['span']}B",
            size,
            shape,
            **strides if case["transposed"] else {},
        )
        held = np.stack(made.coord(np.arange(shape[0] * shape[1]) * size), axis=1)
        if (held != spanned(case["bases"])).any():
            wrong.append({name: case[name] for name in ("span", "bytes", "transposed", "shape")})
    assert len(told["tiles"]) >= 30
    assert wrong == []


def test_conflicts_are_what_triton_counts(told: dict[str, list[dict[str, Any]]]) -> None:
    compared, wrong = 0, []
    for case in told["accesses"]:
        places, width = accesses(case)
        if (places % width).any():
            continue
        compared += 1
        if bank_conflicts(places, width).excess != case["conflicts"]:
            wrong.append(case)
    assert compared >= 190
    assert wrong == []


def accesses(case: dict[str, Any]) -> tuple[NDArray[np.int64], int]:
    """Addresses (access, lane) and bytes a lane, when values that lie side by side are moved up to 16 bytes at a time."""
    points = spanned(case["shared_bases"])
    offsets = np.zeros(points.max(axis=0) + 1, np.int64)
    offsets[points[:, 0], points[:, 1]] = np.arange(len(points)) * case["bytes"]
    rest, width = list(case["register_bases"]), case["bytes"]
    for base in case["shared_bases"]:
        if 2 * width > 16 or base not in rest:
            break
        rest.remove(base)
        width *= 2
    held = spanned(rest)[:, None] ^ spanned(case["lane_bases"])[None]
    return offsets[held[..., 0], held[..., 1]], width
