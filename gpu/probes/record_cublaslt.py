"""Runs every case of the probe of cuBLASLt through PyTorch and writes the kept outputs, with the kernels that made them.

    PYTHONPATH=. python3 gpu/probes/record_cublaslt.py --out conformance/vectors/h200

Needs PyTorch with CUDA and a GPU of compute capability 9.0. The names of kernels are the profiler's. Whole operands are
made on the GPU; the rows that NumPy makes of them are compared first.
"""

import ctypes
import datetime
import subprocess
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from record_conversions import record_one, sha256, store

from refsim.computations.scale_changes import BLOCK
from refsim.formats import BF16, F32
from refsim.oracles.cublaslt import BLOCKWISE
from refsim.silicon import cublaslt_probe as probe
from refsim.silicon.cublaslt_probe import CublasltCase, CublasltMode

ROWS_AT_ONCE = 1024
NOT_RUN = 0xFFFF


class Operands:
    """Whole matrices on the GPU, of which every case takes the upper left part."""

    def __init__(self, torch: Any) -> None:
        self.torch = torch
        m, n, k = probe.MOST
        self.a, self.b = self._filled(m, k, "a"), self._filled(n, k, "b")
        self.scale_a, self.scale_b = self._scales(m, k, "scale_a"), self._scales(n // BLOCK, k, "scale_b")
        self.of_tensors = tuple(torch.tensor(float(scale), device="cuda") for scale in probe.SCALES)
        self._check()

    def _mixed(self, rows: range, columns: int, name: str) -> Any:
        row, column = (self.torch.arange(*ends, device="cuda") for ends in ((rows.start, rows.stop), (columns,)))
        return probe.mixed(row[:, None], column[None], probe.SEEDS[name])

    def _filled(self, rows: int, columns: int, name: str) -> Any:
        parts = []
        for first in range(0, rows, ROWS_AT_ONCE):
            code = self._mixed(range(first, min(rows, first + ROWS_AT_ONCE)), columns, name) & 0xFF
            parts.append(self.torch.where((code & 0x7F) == 0x7F, code - 1, code).to(self.torch.uint8))
        return self.torch.cat(parts)

    def _scales(self, rows: int, k: int, name: str) -> Any:
        found = probe.scale_bits(self._mixed(range(rows), -(-k // BLOCK), name))
        return found.to(self.torch.int32).view(self.torch.float32)

    def _check(self) -> None:
        places = np.array([0, 1, 130, 1023, 8191])
        for whole, name in ((self.a, "a"), (self.b, "b")):
            if not np.array_equal(whole[places].cpu().numpy(), probe.codes(places, probe.MOST[2], name)):
                raise SystemExit(f"{name}: the GPU and NumPy make different codes")
        few = places[:4]
        for whole, rows, name in ((self.scale_a, places, "scale_a"), (self.scale_b, few % 128, "scale_b")):
            if not np.array_equal(whole[rows].cpu().numpy(), probe.block_scales(rows, probe.MOST[2], name)):
                raise SystemExit(f"{name}: the GPU and NumPy make different scales")

    def product(self, case: CublasltCase, mode: CublasltMode) -> Any:
        """The library's answer to a case."""
        step = 4 if mode.scaling == BLOCKWISE else 1
        m = -(-case.m // step) * step
        a, b = self.a[:m, : case.k].contiguous(), self.b[: case.n, : case.k].contiguous()
        blocks = -(-case.k // BLOCK)
        scales = self.scale_a[:m, :blocks], self.scale_b[: -(-case.n // BLOCK), :blocks]
        return called(self.torch, mode, a, b, self.of_tensors, scales)


def called(torch: Any, mode: CublasltMode, a: Any, b: Any, scalars: Any, scales: Any) -> Any:
    """One call of PyTorch that is one call of cuBLASLt."""
    from torch.nn.functional import ScalingType, scaled_mm

    out = torch.bfloat16 if mode.out is BF16 else torch.float32
    a, b = a.view(torch.float8_e4m3fn), b.view(torch.float8_e4m3fn).t()
    if mode.scaling != BLOCKWISE:
        return torch._scaled_mm(a, b, *scalars, out_dtype=out, use_fast_accum=mode.accumulation == "fast")
    by_row, by_block = scales
    m, blocks = by_row.shape
    by_row = by_row.t().contiguous().as_strided((m, blocks), (1, m if blocks > 1 else 1))
    padded = torch.zeros(len(by_block), -(-blocks // 4) * 4, device="cuda")
    padded[:, :blocks] = by_block
    kinds = ScalingType.BlockWise1x128, ScalingType.BlockWise128x128
    return scaled_mm(a, b, by_row, kinds[0], padded.t(), kinds[1], output_dtype=out)


def words_of(torch: Any, values: Any, mode: CublasltMode) -> NDArray[Any]:
    signed = torch.int16 if mode.out is BF16 else torch.int32
    return np.asarray(values.view(signed).cpu().numpy()).view(mode.out.code_dtype)


def record_mode(torch: Any, operands: Operands, mode: CublasltMode) -> tuple[NDArray[Any], list[str], list[str]]:
    """The kept words of every case, the kernels' names and what was refused, "" where nothing was."""
    from torch.profiler import ProfilerActivity, profile

    kept, refused = [], []
    with profile(activities=[ProfilerActivity.CUDA]) as profiled:
        for case in probe.cases():
            error, some = "", None
            torch.cuda._sleep(10)  # a mark before and after what is looked at
            try:
                found = operands.product(case, mode)
                torch.cuda._sleep(10)
                row, column = (torch.tensor(each, device="cuda") for each in (case.rows, case.columns))
                some = found[row][:, column]
            except (RuntimeError, ValueError) as problem:
                error = str(problem).splitlines()[0]
                torch.cuda._sleep(10)
            kept.append(some)
            refused.append(error)
        torch.cuda.synchronize()
    empty = np.zeros((2, 4), mode.out.code_dtype)
    words = np.stack([empty if some is None else words_of(torch, some, mode) for some in kept])
    return words, kernels_between_marks(torch, profiled, len(kept)), refused


def kernels_between_marks(torch: Any, profiled: Any, count: int) -> list[str]:
    """Of each case the library's kernels that multiplied, without the arguments of their templates."""
    events = [event for event in profiled.events() if event.device_type == torch.autograd.DeviceType.CUDA]
    events.sort(key=lambda event: event.time_range.start)
    names = [event.name for event in events]
    marks = [place for place, name in enumerate(names) if "spin" in name or "sleep" in name.lower()]
    if len(marks) != 2 * count:
        raise SystemExit(f"{len(marks)} marks of {count} cases: the profiler lost events")
    spans = zip(marks[::2], marks[1::2], strict=True)
    return [" ".join(name for name in names[first:last] if name.startswith("nvjet")) for first, last in spans]


def record_specials(torch: Any) -> dict[str, NDArray[Any]]:
    """The whole outputs of operands and scales that are no ordinary numbers, float32, one row for each."""
    found: dict[str, list[NDArray[Any]]] = {}
    for mode in probe.MODES:
        if mode.out is F32:
            for special in probe.SPECIALS:
                a, b, *scales = (torch.from_numpy(each).cuda() for each in special.operands(mode))
                product = called(torch, mode, a, b, [each.reshape(()) for each in scales if each.numel() == 1], scales)
                found.setdefault(f"specials {mode.name}", []).append(words_of(torch, product, mode))
    return {name: np.stack(words) for name, words in found.items()}


def library_version() -> int:
    """What cublasLtGetVersion says of the library that PyTorch loaded."""
    loaded = next(
        line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "libcublasLt" in line
    )
    library = ctypes.CDLL(loaded)
    library.cublasLtGetVersion.restype = ctypes.c_size_t
    return int(library.cublasLtGetVersion())


def record(out: Path, _folder: Path) -> None:
    import torch

    began = time.perf_counter()
    operands = Operands(torch)
    arrays: dict[str, NDArray[Any]] = {}
    rows: dict[str, Any] = {}
    names: dict[str, int] = {}
    for mode in probe.MODES:
        words, kernels, refused = record_mode(torch, operands, mode)
        places = [
            NOT_RUN if error else names.setdefault(name, len(names))
            for name, error in zip(kernels, refused, strict=True)
        ]
        arrays |= {mode.name: words, f"{mode.name} kernel": np.array(places, np.uint16)}
        errors = {error: refused.count(error) for error in dict.fromkeys(refused) if error}
        rows[mode.name] = {"arrays": {"words": mode.name, "kernel": f"{mode.name} kernel"}, "refused": errors}
        print(f"{mode.name}: {refused.count('')} of {len(refused)}, {time.perf_counter() - began:.1f} s", flush=True)
    specials = record_specials(torch)
    rows |= {name: {"arrays": {"words": name}, "names": [each.name for each in probe.SPECIALS]} for name in specials}
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    content = {
        "device": torch.cuda.get_device_name(),
        "compute_capability": ".".join(map(str, torch.cuda.get_device_capability())),
        "driver": subprocess.run(query, capture_output=True, text=True, check=False).stdout.strip().splitlines()[0],
        "torch": torch.__version__,
        "cublaslt": library_version(),
        "date": datetime.datetime.now(tz=datetime.UTC).date().isoformat(),
        "sha256": {"cublaslt_probe.py": sha256(Path(probe.__file__).read_bytes())},
        "kernels": list(names),
        "recordings": rows,
    }
    store(out, probe.STEM, arrays | specials, content)


if __name__ == "__main__":
    record_one("the FP8 GEMM of cuBLASLt", record)
