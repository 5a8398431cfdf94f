"""Speed of the FP8 GEMM with block scales on one Hopper GPU, against torch's scaled_mm with the same scales in the same run.

    PYTHONPATH=. python benchmarks/gpu_fp8_gemm.py [--json PATH] [--entries] [--only whole few experts]

Needs torch with CUDA and cuda-bindings. Times are medians of rounds in which peer and kernel take turns, each a CUDA graph
over more operands than the L2 cache holds; operands are normal, every scale another number. The clock of a GPU under this
load is set by its power, so that only the ratio within a round is a figure, and the rates beside it are what it was made of.
First the bits: all of D against cuBLASLt's, and 512 x 512 sampled outputs against the oracle.
Three tables: whole tiles; few rows, each entry that swaps A and B and each number of parts of K beside scaled_mm and the
entry of whole tiles; experts, both layouts, beside the GEMM of one B of the same M, N and K: equal work, more bytes.
"""

import argparse
import json
import statistics
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from gemm_launches import (
    SAMPLED,
    Entry,
    Kernels,
    Shape,
    bindings,
    block_scaled,
    check_bits,
    check_samples,
    experts,
    in_parts,
    in_turns,
    of_experts,
    ratio_of,
    sets_of,
    splits,
    tensor_scaled,
)

SHAPES = (
    (64, 7168, 16384),
    (128, 7168, 16384),
    (4096, 2112, 7168),
    (4096, 24576, 1536),
    (4096, 32768, 512),
    (4096, 7168, 16384),
    (4096, 4096, 7168),
    (4096, 7168, 2048),
)
FEW_ROWS = (
    (8, 7168, 16384),
    (16, 7168, 16384),
    (64, 7168, 16384),
    (64, 2112, 7168),
    (32, 4096, 7168),
    (64, 24576, 1536),
)
SPLITS = (1, 2, 4)
EXPERTS = (
    (8, 512, 4096, 7168),
    (4, 1024, 7168, 2048),
    (16, 256, 7168, 2048),
    (2, 2048, 7168, 16384),
)  # each: rows, N, K


@dataclass(frozen=True)
class Row:
    """One shape: TFLOPS of the kernel and of its peer with the same scales, medians, and the median of their ratios."""

    shape: Shape
    entry: str
    tflops: float
    peer_tflops: float
    ratio: float
    tensor_scaled_tflops: float


def measure(kernels: Kernels, shape: Shape, entry: Entry, *, bits: bool) -> Row:
    m, n, k = shape
    sets = sets_of(shape)
    launches = [kernels.gemm(entry).prepared(o) for o in sets]
    if bits:
        check_bits(sets[0], launches[0], k)
    work = 2e-6 * m * n * k  # TFLOP x 1e6 / us
    calls = {"peer": [*map(block_scaled, sets)], "ours": launches, "plain": [*map(tensor_scaled, sets)]}
    times = in_turns(calls, work)
    rates = {name: work / statistics.median(some) for name, some in times.items()}
    ratio = ratio_of(times["peer"], times["ours"])
    return Row(shape, entry.name, rates["ours"], rates["peer"], ratio, rates["plain"])


@dataclass(frozen=True)
class Beside:
    """One entry at one shape: TFLOPS, and how many times as fast as others in the same rounds."""

    shape: tuple[int, ...]
    entry: str
    how: str
    chosen: bool
    tflops: float
    over: dict[str, float]


def few_rows(kernels: Kernels, shape: Shape) -> list[Beside]:
    """Every entry of few rows whose tile holds M rows without waste, in SPLITS parts, beside scaled_mm and whole tiles."""
    m, n, k = shape
    sets, whole = sets_of(shape), kernels.gemm(bindings.chosen(*shape))
    least = min((entry.rows for entry in splits.ENTRIES.values() if entry.rows >= min(m, 64)), default=64)
    candidates = [entry for entry in splits.ENTRIES.values() if not entry.swapped or entry.rows == least]
    calls: dict[str, list[Callable[[], Any]]] = {
        "scaled_mm": [*map(block_scaled, sets)],
        "whole tiles": [whole.prepared(o) for o in sets],
    }
    keys = {}
    for entry in candidates:
        for count in SPLITS:
            name = f"{entry.name} {count}"
            keys[name] = entry, count
            calls[name] = [in_parts(kernels.gemm(entry), o, count) for o in sets]
            sets[0].d.fill_(-7.0)
            calls[name][0]()
            check_samples(sets[0], k, splits=count)
    work = 2e-6 * m * n * k
    times = in_turns(calls, work)
    return [
        Beside(
            shape,
            entry.name,
            f"{count} of K",
            entry == splits.chosen(*shape, splits=count),
            work / statistics.median(times[name]),
            {peer: ratio_of(times[peer], times[name]) for peer in ("scaled_mm", "whole tiles")},
        )
        for name, (entry, count) in keys.items()
    ]


def expert_rows(kernels: Kernels, of: int, rows: int, n: int, k: int) -> list[Beside]:
    """Both layouts of `of` experts with `rows` each, beside the GEMM of one B with all rows."""
    shape = of * rows, n, k
    group = torch.arange(of, device="cuda", dtype=torch.int32)
    packed, owners = sets_of(shape, 1, of), group.repeat_interleave(rows)
    layouts = {f"aligned {step}": (packed, owners, step) for step in (128, 256) if rows % step == 0}
    layouts["masked"] = sets_of((rows, n, k), of, of), torch.full_like(group, rows), None
    one_b = sets_of(shape)
    dense = kernels.gemm(bindings.chosen(*shape))
    calls: dict[str, list[Callable[[], Any]]] = {"one B": [dense.prepared(o) for o in one_b]}
    entries = {}
    for layout, (sets, groups, step) in layouts.items():
        entries[layout] = experts.chosen([rows] * of, n, k, step)
        calls[layout] = [of_experts(kernels.gemm(entries[layout]), o, groups) for o in sets]
        calls[layout][0]()
        check_samples(sets[0], k, groups=groups.cpu().numpy(), group_rows=step or 128)
    work = 2e-6 * of * rows * n * k
    times = in_turns(calls, work)
    return [
        Beside(
            (of, rows, n, k),
            entry.name,
            layout,
            True,
            work / statistics.median(times[layout]),
            {"one B": ratio_of(times["one B"], times[layout])},
        )
        for layout, entry in entries.items()
    ]


def print_whole(rows: list[Row]) -> None:
    print(f"{'M x N x K':>20}  {'entry':<26}{'TFLOPS':>8}{'scaled_mm':>11}{'ratio':>7}{'one scale':>11}")
    for row in rows:
        m, n, k = row.shape
        print(
            f"{m:>6} x{n:>6} x{k:>6}  {row.entry:<26}{row.tflops:8.0f}{row.peer_tflops:11.0f}{row.ratio:7.2f}"
            f"{row.tensor_scaled_tflops:11.0f}"
        )
    print(f"geometric mean of the ratios {statistics.geometric_mean(row.ratio for row in rows):.3f}")


def print_beside(title: str, rows: list[Beside]) -> None:
    """`*` marks the entry that is chosen; a number behind a name is how many times as fast as that."""
    print(f"{title}\n{'shape':>26}  {'entry':<40}{'':<12}{'TFLOPS':>8}")
    for row in rows:
        over = "".join(f"  {ratio:.2f} x {peer}" for peer, ratio in row.over.items())
        mark = "*" if row.chosen else ""
        print(f"{' x '.join(map(str, row.shape)):>26}  {row.entry + mark:<40}{row.how:<12}{row.tflops:8.0f}{over}")


TABLES = ("whole", "few", "experts")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="also write the rows and the hashes of the code here")
    parser.add_argument("--entries", action="store_true", help="also time every other entry at every shape")
    parser.add_argument("--only", nargs="+", choices=TABLES, default=TABLES, help="which tables")
    arguments = parser.parse_args()
    torch.empty(1, device="cuda")  # makes the primary context current
    kernels = Kernels()
    device = torch.cuda.get_device_name(0)
    built = next(iter(kernels.built.values()))
    print(f"{device}, torch {torch.__version__}, {built[0].compiler} ({built[0].origin}), {built[1].assembler}")
    found: dict[str, list[Any]] = {key: [] for key in (*TABLES, "every_entry")}
    if "whole" in arguments.only:
        found["whole"] = [measure(kernels, shape, bindings.chosen(*shape), bits=True) for shape in SHAPES]
        print_whole(found["whole"])
    if "few" in arguments.only:
        found["few"] = [row for shape in FEW_ROWS for row in few_rows(kernels, shape)]
        print_beside("Few rows", found["few"])
    if "experts" in arguments.only:
        found["experts"] = [row for each in EXPERTS for row in expert_rows(kernels, *each)]
        print_beside("Experts x rows x N x K", found["experts"])
    if arguments.entries:
        every = bindings.ENTRIES.values()
        found["every_entry"] = [measure(kernels, shape, entry, bits=False) for shape in SHAPES for entry in every]
    if arguments.json:
        record: dict[str, Any] = {"device": device, "torch": torch.__version__, "sampled_outputs": SAMPLED**2}
        record |= {"code": kernels.record()}
        record |= {name: [asdict(row) for row in rows] for name, rows in found.items()}
        arguments.json.write_text(json.dumps(record, indent=1))


if __name__ == "__main__":
    main()
