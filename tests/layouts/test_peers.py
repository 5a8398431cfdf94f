"""Every fragment that an independent implementation also has, compared place by place; the evidence column follows.

Peers: CuTe's layout strings (CUTLASS 4.2 include/cute/atom, evaluated here), tensor-layouts, Triton's linear layouts, and
the register tables that composable_kernel's MX tests are written by. Left out where they are wrong: B of the m16n8k32 s4
atom of CuTe and tensor-layouts, the AMD atoms of tensor-layouts, and its m16n8k64 e4m3, which is no instruction.
"""

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from refsim.layouts import fragment, fragments
from refsim.layouts.evidence import COMPOSABLE_KERNEL_PACKAGE, CUTE_PACKAGE, TENSOR_LAYOUTS_PACKAGE, TRITON_PACKAGE
from refsim.testing.kernel_files import load_kernel_file
from tests import triton_versions

cutlass = load_kernel_file(Path(__file__).with_name("cute_layouts.py"))
Places = tuple[NDArray[np.int64], NDArray[np.int64]]  # row and column of every (thread, value), -1 for none
Peer = dict[str, Callable[[], Places]]


def needed(module: str) -> None:
    """Go on only where an optional package is; its absence fails in CI and is a stated reason elsewhere."""
    if find_spec(module) is None:
        if os.environ.get("CI") == "true":
            pytest.fail(f"needed in CI: {module}")
        pytest.skip(f"{module} is not installed: nothing to compare with")


# tensor-layouts


TENSOR_LAYOUTS_MMA = {
    "SM75_16x8x8_F32F16F16F32_TN": "m16n8k8.f16",
    "SM75_8x8x16_S32S8S8S32_TN": "m8n8k16.s8",
    "SM80_16x8x8_F16F16F16F16_TN": "m16n8k8.f16",
    "SM80_16x8x16_F16F16F16F16_TN": "m16n8k16.f16",
    "SM80_16x8x8_F32F16F16F32_TN": "m16n8k8.f16",
    "SM80_16x8x16_F32F16F16F32_TN": "m16n8k16.f16",
    "SM80_16x8x8_F32BF16BF16F32_TN": "m16n8k8.bf16",
    "SM80_16x8x16_F32BF16BF16F32_TN": "m16n8k16.bf16",
    "SM80_16x8x4_F32TF32TF32F32_TN": "m16n8k4.tf32",
    "SM80_16x8x8_F32TF32TF32F32_TN": "m16n8k8.tf32",
    "SM80_8x8x4_F64F64F64F64_TN": "m8n8k4.f64",
    "SM80_8x8x16_S32S8S8S32_TN": "m8n8k16.s8",
    "SM80_16x8x16_S32S8S8S32_TN": "m16n8k16.s8",
    "SM80_16x8x32_S32S8S8S32_TN": "m16n8k32.s8",
    "SM80_8x8x32_S32S4S4S32_TN": "m8n8k32.s4",
    "SM80_16x8x32_S32S4S4S32_TN": "m16n8k32.s4",
    "SM80_16x8x64_S32S4S4S32_TN": "m16n8k64.s4",
    "SM80_8x8x128_S32U1U1S32_TN_XORPOPC": "m8n8k128.b1",
    "SM80_16x8x128_S32U1U1S32_TN_XORPOPC": "m16n8k128.b1",
    "SM80_16x8x256_S32U1U1S32_TN_XORPOPC": "m16n8k256.b1",
    "SM89_16x8x32_F32E4M3E4M3F32_TN": "m16n8k32.e4m3",
    "SM89_16x8x32_F16E4M3E4M3F16_TN": "m16n8k32.e4m3",
    "SM89_16x8x32_F32E5M2E5M2F32_TN": "m16n8k32.e5m2",
    "SM89_16x8x32_F16E5M2E5M2F16_TN": "m16n8k32.e5m2",
    "SM90_16x8x4_F64F64F64F64_TN": "m16n8k4.f64",
    "SM90_16x8x8_F64F64F64F64_TN": "m16n8k8.f64",
    "SM90_16x8x16_F64F64F64F64_TN": "m16n8k16.f64",
}
TENSOR_LAYOUTS_VOLTA = {
    "SM70_8x8x4_F32F16F16F32_TN": ("a", "b", "d"),
    "SM70_8x8x4_F16F16F16F16_NT": ("a.col", "b.row", "d.f16"),
}
TENSOR_LAYOUTS_COPIES = {
    "SM75_U32x{n}_LDSM_N": "ldmatrix.m8n8.x{n}.b16",
    "SM75_U16x{t}_LDSM_T": "ldmatrix.m8n8.x{n}.b16.trans",
    "SM90_U32x{n}_STSM_N": "stmatrix.m8n8.x{n}.b16",
    "SM90_U16x{t}_STSM_T": "stmatrix.m8n8.x{n}.b16.trans",
}


def atom_offsets(atom: str, member: str) -> NDArray[np.int64]:
    """Every offset of one layout of a tensor-layouts atom, evaluated by its own code."""
    from tensor_layouts import atoms_nv, size

    layout = getattr(getattr(atoms_nv, atom), member)
    threads, values = size(layout.shape[0]), size(layout.shape[1])
    return np.array([[layout(thread, value) for value in range(values)] for thread in range(threads)])


def atom_places(place: Callable[..., Places], atom: str, member: str, *arguments: Any) -> Places:
    return place(atom_offsets(atom, member), *arguments)


def tensor_layouts_peer() -> Peer:
    found: Peer = {}
    for atom, stem in TENSOR_LAYOUTS_MMA.items():
        m = int(stem[1:].split("n")[0])
        found[f"mma.{stem}.a"] = partial(atom_places, cutlass.down_columns, atom, "a_layout", m)
        if stem != "m16n8k32.s4":
            found[f"mma.{stem}.b"] = partial(atom_places, cutlass.across, atom, "b_layout", 8)
        for operand in "cd":
            name = f"mma.{stem}.{operand}" + ".f16" * ("_F16" in atom)
            found[name] = partial(atom_places, cutlass.down_columns, atom, "c_layout", m)
    for atom, operands in TENSOR_LAYOUTS_VOLTA.items():
        for operand in operands:
            places = partial(
                atom_places, cutlass.four_pairs, atom, "abcd"["abd".index(operand[0])] + "_layout", operand
            )
            found |= dict.fromkeys(cutlass.volta_names(operand), places)
    for n in (8, 16, 32, 64, 128, 256):
        atom = f"SM90_64x{n}x16_F16F16F16_SS"
        found[f"wgmma.m64n{n}k16.f16.d.f16"] = partial(atom_places, cutlass.down_columns, atom, "c_layout", 64)
    for atom, name in TENSOR_LAYOUTS_COPIES.items():
        for n in (1, 2, 4):
            member = "src_layout_bits" if "STSM" in atom else "dst_layout_bits"
            found[name.format(n=n)] = partial(atom_places, cutlass.bits, atom.format(n=n, t=2 * n), member, 128, 16, 16)
    return found


# Triton's linear layouts are asked by a program of their own: name -> the kind of question and its arguments.

TRITON_PROGRAM = Path(__file__).with_name("triton_layouts.py")


@cache
def triton_places() -> dict[str, Places]:
    """Triton's answer to every question, from one run of the program."""
    with TemporaryDirectory() as folder:
        file = Path(folder) / "places.npz"
        done = subprocess.run(
            [sys.executable, str(TRITON_PROGRAM), str(file)],
            input=json.dumps(triton_questions()),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-2000:]
        with np.load(file) as found:
            return {name: (places[0], places[1]) for name, places in found.items()}


# version, MN, K, types, consecutive k of a lane
TRITON_MFMA = [
    (3, 32, 8, ["f16", "bf16"], 4),
    (3, 16, 16, ["f16", "bf16"], 4),
    (3, 32, 16, ["i8", "fp8", "bf8"], 8),
    (3, 16, 32, ["i8", "fp8", "bf8"], 8),
    (4, 32, 16, ["f16", "bf16"], 8),
    (4, 16, 32, ["f16", "bf16"], 8),
    (4, 32, 32, ["i8"], 16),
    (4, 16, 64, ["i8"], 16),
    (4, 32, 64, ["f8f6f4"], 16),
    (4, 16, 128, ["f8f6f4"], 16),
    (3, 32, 2, ["f32"], 1),
    (3, 16, 4, ["f32"], 1),
    (3, 32, 4, ["xf32"], 2),
    (3, 16, 8, ["xf32"], 2),
    (3, 16, 4, ["f64"], 1),
]
TRITON_MMA = [
    ("m16n8k16", ["f16", "bf16"], 2, 16),
    ("m16n8k32", ["s8", "u8", "e4m3", "e5m2"], 4, 32),
    ("m16n8k8", ["tf32"], 1, 8),
]


def triton_peer() -> Peer:
    return {name: partial(lambda name: triton_places()[name], name) for name in triton_questions()}


@cache
def triton_questions() -> dict[str, tuple[Any, ...]]:
    return triton_nvidia() | triton_tensor_memory() | triton_amd()


def triton_nvidia() -> dict[str, tuple[Any, ...]]:
    found: dict[str, tuple[Any, ...]] = {}
    for shape, types, width, k in TRITON_MMA:
        for type in types:
            stem = f"mma.{shape}.{type}"
            found[f"{stem}.a"] = ("nvidia", 2, 1, [16, 8], 0, width, [16, k])
            found[f"{stem}.b"] = ("nvidia", 2, 1, [16, 8], 1, width, [k, 8])
            found |= dict.fromkeys(cutlass.accumulators(stem), ("nvidia", 2, 1, [16, 8], None, 0, [16, 8]))
    for name in fragments("wgmma"):
        n, k, operand = cutlass.wgmma_parts(name)
        if operand == "a" and k in (16, 32):
            found[name] = ("nvidia", 3, 4, [16, 64, k], 0, k // 8, [64, k])
        elif operand == "d" and n & (n - 1) == 0 and k < 256:
            found[name] = ("nvidia", 3, 4, [16, n, 16], None, 0, [64, n])
    return found


def triton_tensor_memory() -> dict[str, tuple[Any, ...]]:
    found: dict[str, tuple[Any, ...]] = {}
    for n in (16, 32, 64, 128, 256):
        for m, ctas in ((64, 1), (128, 1), (128, 2), (256, 2)):
            found[f"tcgen05.m{m}n{n}.{ctas}sm.d"] = ("tensor memory", m, n, ctas)
    found["tcgen05.m128.4x.sfa"] = ("scales", 128, "sfa")
    for n in (128, 256):
        found[f"tcgen05.n{n}.4x.sfb"] = ("scales", n, "sfb")
    return found


def triton_amd() -> dict[str, tuple[Any, ...]]:
    found: dict[str, tuple[Any, ...]] = {}
    for version, mn, k, types, width in TRITON_MFMA:
        for type in types:
            stem = f"mfma.{mn}x{mn}x{k}.{type}"
            sums = ("amd", version, mn, k, None, 0, 64 if type == "f64" else 32)
            found |= dict.fromkeys((f"{stem}.c", f"{stem}.d"), sums)
            for index, operand in enumerate("ab"):
                found[f"{stem}.{operand}"] = ("amd", version, mn, k, index, width)
                if type == "f8f6f4":
                    found[f"{stem}.{operand}.fp4"] = ("amd", version, mn, k, index, 16, 32, 2)
                    found[f"{stem}.sf{operand}"] = ("amd scales", mn, k // 32, index)
    return found


# composable_kernel, test/mx_mfma_op/mx_mfma_op.hpp: first k of every run that lane group 0, 1, ... holds, and its length
CK_RUNS = {
    ("16x16x128", ""): (16, [[0, 64], [16, 80], [32, 96], [48, 112]]),
    ("32x32x64", ""): (16, [[0, 32], [16, 48]]),
    ("16x16x128", ".fp6"): (32, [[0], [32], [64], [96]]),
    ("32x32x64", ".fp6"): (32, [[0], [32]]),
    ("16x16x128", ".fp4"): (32, [[0], [32], [64], [96]]),
    ("32x32x64", ".fp4"): (32, [[0], [32]]),
}


def composable_kernel_peer() -> Peer:
    found: Peer = {}
    for (shape, suffix), (length, runs) in CK_RUNS.items():
        for operand in "ab":
            found[f"mfma.{shape}.f8f6f4.{operand}{suffix}"] = partial(ck_places, operand, int(shape[:2]), length, runs)
    return found


def ck_places(operand: str, mn: int, length: int, runs: list[list[int]]) -> Places:
    k = np.array([[start + step for start in starts for step in range(length)] for starts in runs])
    lane = np.arange(64)
    outer, along = np.broadcast_to((lane % mn)[:, None], (64, k.shape[1])), k[lane // mn]
    return (outer, along) if operand == "a" else (along, outer)


PEERS: dict[str, Callable[[], Peer]] = {
    CUTE_PACKAGE: cutlass.cute_peer,
    TENSOR_LAYOUTS_PACKAGE: tensor_layouts_peer,
    TRITON_PACKAGE: triton_peer,
    COMPOSABLE_KERNEL_PACKAGE: composable_kernel_peer,
}
LIVE = pytest.param(TENSOR_LAYOUTS_PACKAGE, marks=pytest.mark.peers("tensor_layouts"))


@pytest.mark.parametrize("package", [CUTE_PACKAGE, LIVE, TRITON_PACKAGE, COMPOSABLE_KERNEL_PACKAGE])
def test_every_common_fragment_agrees(package: str) -> None:
    """Row and column of every place are those of the peer; places without an element are not the peer's to say."""
    if package == TRITON_PACKAGE:
        needed("triton")
        triton_versions.since(triton_versions.LAYOUTS)
    peer = PEERS[package]
    wrong, entries = [], 0
    for name, places in peer().items():
        rows, cols = fragment(name).elements
        peer_rows, peer_cols = places()
        threads = len(peer_rows)  # Triton speaks of the first CTA of two
        used = rows[:threads] >= 0
        entries += int(used.sum())
        same = (
            (peer_rows == rows[:threads]) & (peer_cols == cols[:threads])
            if peer_rows.shape == rows[:threads].shape
            else np.zeros(1, bool)
        )
        if same.shape != used.shape or not same[used].all():
            wrong.append(name)
    print(f"{package}: {len(peer())} fragments, {entries} places, {len(wrong)} disagree")
    assert not wrong


def test_evidence_is_what_the_peers_compare() -> None:
    """The evidence column names exactly the packages that have the fragment, and nothing else is claimed."""
    having = {package: set(peer()) for package, peer in PEERS.items()}
    assert set().union(*having.values()) <= set(fragments())
    wrong = {
        name: (fragment(name).evidence.packages, expected)
        for name in fragments()
        if set(fragment(name).evidence.packages)
        != (expected := {package for package in PEERS if name in having[package]})
    }
    print(Counter(len(fragment(name).evidence.packages) for name in fragments()))
    assert not wrong


def test_the_s4_atom_left_out_is_no_fragment() -> None:
    """256 places, 160 elements: CuTe's B of m16n8k32 s4 lets neighbouring lanes share half their k. Ours is a bijection."""
    assert cutlass.cute(cutlass.CUTE_S4_B).size == 256
    assert len(np.unique(cutlass.cute(cutlass.CUTE_S4_B))) == 160
    assert fragment("mma.m16n8k32.s4.b").copies == 1


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("mma.m16n8k32.mxf8f6f4.1x.sfa", "((2,2,8),1):((8,0,1),0)"),
        ("mma.m16n8k64.mxf4.2x.sfa", "((2,2,8),1):((8,0,1),0)"),
        ("mma.m16n8k32.mxf8f6f4.1x.sfb", "((4,8),1):((0,1),0)"),
        ("mma.m16n8k64.mxf4nvf4.4x.sfb", "((4,8),1):((0,1),0)"),
    ],
)
def test_scale_lanes_have_the_rows_that_cute_loads(name: str, text: str) -> None:
    """CuTe loads a scale into every lane that a thread-id could choose; lanes of thread-id 0 must have that row."""
    outer = fragment(name).elements[1 if name.endswith("sfb") else 0]
    lanes = np.flatnonzero((outer >= 0).any(axis=1))
    np.testing.assert_array_equal(outer[lanes].max(axis=1), cutlass.cute(text)[lanes, 0])
