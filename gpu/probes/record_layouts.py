"""Runs layouts.cu on a GPU and writes who held what, with all that decided it: device, driver, compiler, hashes.

    PYTHONPATH=. python3 gpu/probes/record_layouts.py --out conformance/vectors/h200 [--cubins FOLDER]
    PYTHONPATH=. python3 gpu/probes/record_layouts.py --build FOLDER

Needs PyCUDA, a GPU of compute capability 9.0, nvcc and cuobjdump; `--cubins` takes what `--build` made. Nothing here
knows a layout: descriptors are written bit by bit, tensor maps by the driver. Matrices and products run twice over
differently poisoned results, and a difference is an error; copies run over two poisons, so that what they leave alone
is known.
"""

import argparse
import ctypes
import re
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import layouts_forms
import numpy as np
from layouts_prober import ABSENT, Prober
from layouts_products import record_products
from numpy.typing import NDArray
from record_conversions import COMPILE, facts, sha256, store

HERE = Path(__file__).parent
SOURCES = ("layouts.cu", "layouts_forms.py", "layouts_forms.inc")
MATRIX_FORMS = [
    (f"{way}matrix_x{count}{trans}", f"{way}matrix.m8n8.x{count}.b16{trans.replace('_', '.')}", count)
    for way in ("ld", "st")
    for trans in ("", "_trans")
    for count in (1, 2, 4)
]
MACHINE = re.compile(r"\b((?:[HQIBD]G?MMA|LDSM|STSM|UTMALDG|UTMASTG|LDS|STS)(?:\.\w+)*)")
PACKED = ("d", "a_places", "b_places", "load", "store")
"""Arrays kept as differences along their last axis, mod 2^16: they are regular, and so are stored in a tenth."""
SLOTS = np.array([(7 * lane + 3) % 40 for lane in range(32)], np.uint32)
"""Lane i names 16-byte slot SLOTS[i] of 40: all differ, none follows its neighbour."""


def build(folder: Path) -> None:
    """layouts_forms.inc and layouts.cubin into a folder."""
    (folder / "layouts_forms.inc").write_text(layouts_forms.text())
    subprocess.run(
        [*COMPILE, "-I", str(folder), str(HERE / "layouts.cu"), "-o", str(folder / "layouts.cubin")], check=True
    )


# ---- ldmatrix, stmatrix ----------------------------------------------------------------------------------------------


def record_matrices(gpu: Prober) -> Iterator[tuple[str, dict[str, NDArray[Any]], dict[str, Any]]]:
    """Registers of ldmatrix, shared memory after stmatrix."""
    slots = gpu.driver.to_device(SLOTS)
    for entry, name, count in MATRIX_FORMS:
        words, dtype = (32 * count, np.uint32) if entry.startswith("ld") else (320, np.uint16)
        got = gpu.twice(entry, (words, dtype), np.uint64(int(slots)))
        key = "registers" if entry.startswith("ld") else "shared"
        yield name, {key: got.view(np.uint16), "slots": SLOTS}, {"entry": entry, "kind": "matrix"}


# ---- TMA -------------------------------------------------------------------------------------------------------------

CODES = {"uint8": (0, 1), "uint16": (1, 2), "uint32": (2, 4), "float16": (6, 2), "float32": (7, 4), "bfloat16": (9, 2)}
MODES = {"none": 0, "32B": 1, "64B": 2, "128B": 3}


@dataclass(frozen=True)
class Box:
    """One copy: the tensor map's parameters, the coordinates, and the destination or source past a 1024-byte boundary."""

    name: str
    data_type: str
    dims: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: str
    coordinates: tuple[int, ...]
    shared_offset: int = 0
    element_strides: tuple[int, ...] = ()
    nan_fill: bool = False

    @property
    def tensor_bytes(self) -> int:
        return self.strides[-1] * self.dims[-1]

    @property
    def steps(self) -> tuple[int, ...]:
        return self.element_strides or (1,) * len(self.dims)

    @property
    def transaction_bytes(self) -> int:
        taken = [-(-extent // step) for extent, step in zip(self.box[1:], self.steps[1:], strict=True)]
        return int(self.box[0] * np.prod(taken)) * CODES[self.data_type][1]

    @property
    def window_bytes(self) -> int:
        rows = int(np.prod(self.box[1:]))
        return self.shared_offset + max(self.transaction_bytes, rows * 128) + 256


def boxes() -> Iterator[Box]:
    """Every swizzle with every width, inside the tensor, across its edges, at several destinations."""
    spans = {"none": 64, "32B": 32, "64B": 64, "128B": 128}
    for data_type, swizzle in ((t, s) for t in ("uint8", "bfloat16", "float32") for s in spans):
        size = CODES[data_type][1]
        dims, strides = (400 // size, 20), (416,)
        box = (spans[swizzle] // size, 16)
        stem = f"tma.{data_type}.{swizzle}"
        yield Box(stem, data_type, dims, strides, box, swizzle, (32 // size, 3))
        for label, at in (("low", (-16 // size, -3)), ("high", (dims[0] - 16 // size, 9))):
            yield Box(f"{stem}.{label}", data_type, dims, strides, box, swizzle, at)
    for swizzle, offset in (("128B", 128), ("128B", 384), ("64B", 128), ("64B", 384), ("32B", 128)):
        box = (spans[swizzle] // 2, 16)
        yield Box(f"tma.bfloat16.{swizzle}.at{offset}", "bfloat16", (200, 20), (416,), box, swizzle, (16, 3), offset)
    for swizzle, width in (("128B", 64), ("128B", 32), ("128B", 96), ("64B", 32), ("64B", 16), ("32B", 16)):
        name = f"tma.bfloat16.{swizzle}.narrow{width}"
        yield Box(name, "bfloat16", (200, 20), (416,), (width // 2, 16), swizzle, (16, 3))
    for swizzle, span in spans.items():
        deep = (span // 2, 4, 3)
        yield Box(f"tma.bfloat16.{swizzle}.3d", "bfloat16", (80, 5, 6), (176, 896), deep, swizzle, (8, 2, 2))
        yield Box(
            f"tma.bfloat16.{swizzle}.3d.steps",
            "bfloat16",
            (80, 5, 6),
            (176, 896),
            deep,
            swizzle,
            (8, 1, 1),
            0,
            (1, 2, 2),
        )
    for data_type in ("float16", "bfloat16", "float32"):
        size = CODES[data_type][1]
        dims, box = (400 // size, 20), (64 // size, 4)
        yield Box(f"tma.{data_type}.nan", data_type, dims, (416,), box, "none", (dims[0], 2), nan_fill=True)


class TensorMaps:
    """cuTensorMapEncodeTiled of the driver, and the constant that the kernels read."""

    def __init__(self, gpu: Prober) -> None:
        self.gpu = gpu
        self.encode = ctypes.CDLL("libcuda.so.1").cuTensorMapEncodeTiled
        self.constant, size = gpu.module.get_global("tensor_map")
        if size != 128:
            raise SystemExit(f"tensor_map has {size} bytes")

    def set(self, box: Box, address: int) -> None:
        rank = len(box.dims)
        room = np.zeros(32, np.uint64)
        at = -(-room.ctypes.data // 64) * 64
        arrays = [
            (kind * len(numbers))(*numbers)
            for kind, numbers in (
                (ctypes.c_uint64, box.dims),
                (ctypes.c_uint64, box.strides),
                (ctypes.c_uint32, box.box),
                (ctypes.c_uint32, box.steps),
            )
        ]
        status = self.encode(
            ctypes.c_void_p(at),
            CODES[box.data_type][0],
            rank,
            ctypes.c_void_p(address),
            *arrays,
            0,
            MODES[box.swizzle],
            0,
            int(box.nan_fill),
        )
        if status:
            raise SystemExit(f"{box.name}: cuTensorMapEncodeTiled returns {status}")
        first = (at - room.ctypes.data) // 8
        self.gpu.driver.memcpy_htod(self.constant, room[first : first + 16])


def tags(count: int, byte: int) -> NDArray[np.uint8]:
    """Byte `byte` of the numbers 1 .. count."""
    return (np.arange(1, count + 1) >> 8 * byte).astype(np.uint8)


def copy_argument(box: Box, poison: int) -> Any:
    copy = np.zeros(1, np.dtype([("at", np.int32, 3), ("numbers", np.uint32, 5)]))
    copy["at"][0, : len(box.coordinates)] = box.coordinates
    copy["numbers"] = (len(box.dims), box.shared_offset, box.transaction_bytes, box.window_bytes, poison)
    return copy[0]


def merged(low: NDArray[np.uint8], high: NDArray[np.uint8], other: NDArray[np.uint8]) -> NDArray[np.uint16]:
    """Tags of 16 bits; ABSENT where the poison (0xA5 in the first two, 0x5A in the third) is left in all three."""
    left = (low == 0xA5) & (high == 0xA5) & (other == 0x5A)
    return np.where(left, ABSENT, low.astype(np.uint16) | high.astype(np.uint16) << 8).astype(np.uint16)


def record_boxes(gpu: Prober) -> Iterator[tuple[str, dict[str, NDArray[Any]], dict[str, Any]]]:
    """For every byte of the window which byte of the tensor came there (number + 1, 0 for fill), and the way back."""
    maps = TensorMaps(gpu)
    for box in boxes():
        memory = gpu.driver.mem_alloc(box.tensor_bytes)
        maps.set(box, int(memory))
        loads, met = [], 1
        for byte, poison in ((0, 0xA5), (1, 0xA5), (0, 0x5A)):
            gpu.driver.memcpy_htod(memory, tags(box.tensor_bytes, byte))
            results = gpu.driver.to_device(np.zeros(box.window_bytes + 16, np.uint8))
            at = int(results)
            copy = copy_argument(box, poison * 0x01010101)
            gpu.launch("tma_load", copy, np.uint64(at), np.uint64(at + 16), threads=128, shared=box.window_bytes)
            got = np.empty(box.window_bytes + 16, np.uint8)
            gpu.driver.memcpy_dtoh(got, results)
            loads.append(got[16:])
            met = min(met, int(got[0]))
        arrays: dict[str, NDArray[Any]] = {"fill": loads[0]} if box.nan_fill else {"load": merged(*loads)}
        if not box.nan_fill and min(box.coordinates) >= 0:  # a store to negative coordinates ends the context
            arrays["store"] = merged(*stored(gpu, box, memory))
        row = {key: value for key, value in vars(box).items() if key != "name"}
        row |= {"transaction_bytes": box.transaction_bytes, "transaction_met": bool(met)}
        yield box.name, arrays, {"entry": "tma_load", "kind": "tma", **row}


def stored(gpu: Prober, box: Box, memory: Any) -> Iterator[NDArray[np.uint8]]:
    for byte, poison in ((0, 0xA5), (1, 0xA5), (0, 0x5A)):
        content = np.full(box.tensor_bytes, poison, np.uint8)
        gpu.driver.memcpy_htod(memory, content)
        try:
            gpu.launch("tma_store", copy_argument(box, byte), threads=128, shared=box.window_bytes)
        except gpu.driver.Error as fault:
            raise SystemExit(f"{box.name}: the store failed: {fault}") from fault
        gpu.driver.memcpy_dtoh(content, memory)
        yield content


# ---- cycles ----------------------------------------------------------------------------------------------------------

WARPS, ACCESSES = 16, 512
ACCESS_WIDTHS = {
    "cycles_load_1": 1,
    "cycles_load_2": 2,
    "cycles_load_4": 4,
    "cycles_load_8": 8,
    "cycles_load_16": 16,
    "cycles_store_4": 4,
    "cycles_store_8": 8,
    "cycles_store_16": 16,
    "cycles_ldmatrix": 16,
    "cycles_stmatrix": 16,
}


def patterns(width: int) -> NDArray[np.uint32]:
    """Addresses (patterns, 32): strides, shared words, equal halves and quarters, rows of 128 bytes, seeded places."""
    lane = np.arange(32)
    rows = [lane * stride * width for stride in (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 17, 24, 32, 33)]
    rows += [lane // 2 * width, lane // 4 * 3 * width, lane % 16 * width, lane % 8 * width, lane % 16 * 2 * width]
    rows += [lane * 128 + chunk * width for chunk in (0, 1)]
    rows += [(lane * 128) ^ (lane % 8 * 16), (lane % 8 * 128 + lane // 8 * 16) ^ (lane % 8 * 16), lane * 144]
    rng = np.random.default_rng(width)
    rows += [rng.integers(0, 256 << (place % 3), 32) * width for place in range(24)]
    return np.array(rows, np.uint32)


def record_cycles(gpu: Prober) -> Iterator[tuple[str, dict[str, NDArray[Any]], dict[str, Any]]]:
    """The least cycles of five runs, all warps of a block and all their accesses together."""
    for entry, width in ACCESS_WIDTHS.items():
        addresses = patterns(width)
        uploaded = gpu.driver.to_device(addresses)
        results = gpu.driver.to_device(np.zeros(2 * len(addresses), np.uint64))
        runs = []
        for _ in range(5):
            gpu.launch(
                entry,
                np.uint64(int(uploaded)),
                np.uint32(0),
                np.uint64(int(results)),
                blocks=len(addresses),
                threads=32 * WARPS,
                shared=160 << 10,
            )
            got = np.empty(2 * len(addresses), np.uint64)
            gpu.driver.memcpy_dtoh(got, results)
            runs.append(got[::2])
        arrays = {"addresses": addresses, "cycles": np.min(runs, axis=0).astype(np.uint32)}
        row = {"entry": entry, "kind": "cycles", "width": width, "warps": WARPS, "accesses": ACCESSES}
        yield entry.replace("_", "."), arrays, row


# ---- files -------------------------------------------------------------------------------------------------------


def opcodes(cubin: Path) -> dict[str, list[str]]:
    """The machine instructions of each entry that move matrices or access shared memory, in order of first use."""
    text = subprocess.run(["cuobjdump", "-sass", str(cubin)], capture_output=True, text=True, check=True).stdout
    parts = (part.partition("\n") for part in re.split(r"\n\s*Function : ", text)[1:])
    return {name.strip(): list(dict.fromkeys(MACHINE.findall(body))) for name, _, body in parts}


def packed(key: str, array: NDArray[Any]) -> NDArray[Any]:
    """The array as it is stored, in the narrowest unsigned type."""
    if key in PACKED:
        return np.diff(array.astype(np.uint16), prepend=np.uint16(0), axis=-1)
    return array.astype(np.min_scalar_type(array.max()))


def record(out: Path, cubins: Path, only: str) -> None:
    """Every probe, timed; equal arrays are stored once."""
    cubin = cubins / "layouts.cubin"
    gpu = Prober(cubin.read_bytes())
    machine = opcodes(cubin)
    members: dict[str, NDArray[Any]] = {}
    known: dict[str, str] = {}
    rows: dict[str, dict[str, Any]] = {}

    def keep(name: str, arrays: dict[str, NDArray[Any]], row: dict[str, Any]) -> None:
        row["arrays"] = {}
        for key, array in arrays.items():
            small = packed(key, array)
            digest = sha256(f"{small.dtype} {small.shape}".encode() + small.tobytes())
            if digest not in known:
                known[digest] = f"{name} {key}"
                members[known[digest]] = small
            row["arrays"][key] = known[digest]
        rows[name] = {**row, "sass": machine.get(row["entry"], [])}

    began = time.perf_counter()
    for recorder in (record_matrices, record_cycles, record_products, record_boxes):
        if only and only not in recorder.__name__:
            continue
        try:
            for name, arrays, row in recorder(gpu):
                keep(name, arrays, row)
        finally:  # what is recorded so far is kept: a fault on the device ends its context
            save(out, gpu, cubin, members, rows)
        print(f"{recorder.__name__}: {time.perf_counter() - began:.1f} s", flush=True)
    gpu.context.pop()


def save(
    out: Path, gpu: Prober, cubin: Path, members: dict[str, NDArray[Any]], rows: dict[str, dict[str, Any]]
) -> None:
    sources = {name: (HERE / name).read_bytes() for name in SOURCES[:2]}
    sources[SOURCES[2]] = layouts_forms.text().encode()
    store(out, "layouts", members, {**facts(gpu, cubin, COMPILE, sources), "recordings": rows})


def main() -> None:
    parser = argparse.ArgumentParser(description="record layouts on a GPU")
    parser.add_argument("--out", type=Path, help="folder for the vectors")
    parser.add_argument("--build", type=Path, help="only compile, into this folder")
    parser.add_argument("--cubins", type=Path, help="folder with layouts.cubin")
    parser.add_argument("--only", default="", help="matrices, cycles, boxes or products")
    options = parser.parse_args()
    if options.build:
        build(options.build)
        return
    options.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        if options.cubins is None:
            build(Path(folder))
        record(options.out, options.cubins or Path(folder), options.only)


if __name__ == "__main__":
    main()
