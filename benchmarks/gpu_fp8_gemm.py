"""Speed of the FP8 GEMM with block scales on one Hopper GPU, against torch's scaled_mm with the same scales in the same run.

    PYTHONPATH=. python benchmarks/gpu_fp8_gemm.py [--json PATH] [--entries] [--only whole few experts]
        [--before CHECKOUT] [--deepgemm FOLDER] [--near COUNT]

Needs torch with CUDA, cuda-bindings and nvidia-ml-py. Each kind of call is a CUDA graph over more operands than the L2 cache
holds; operands are normal, every scale another number. Large products run at the power limit, and a kernel begins with the
clock that the one before it left. So each round has the kinds in another order, and each kind runs 60 ms before its 60 ms are
timed. A figure is the median over the rounds of the ratio within a round; rates, clocks and watts are printed beside it.
First the bits: all of D against cuBLASLt's, and 512 x 512 sampled outputs against the oracle.
`--before`: the kernel of another checkout in the same rounds. `--deepgemm`: DeepGEMM's compiled kernels in the same rounds,
of a folder that `gemm_launches.DeepGemm` describes, and how many words of D differ from theirs. `--near`: the entries of the
next costs in the same rounds.
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
    ROUNDS,
    SAMPLED,
    TIMED,
    WARM,
    DeepGemm,
    Entry,
    Kernels,
    Operands,
    Sensors,
    Shape,
    bindings,
    block_scaled,
    check_bits,
    check_samples,
    count_differing,
    entries_for,
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
MORE_SHAPES = (
    (256, 7168, 16384),
    (512, 7168, 2048),
    (1024, 2112, 7168),
    (1024, 4096, 7168),
    (2048, 7168, 4096),
    (8192, 4096, 7168),
    (8192, 7168, 2048),
)
OTHER_SHAPES = (
    (256, 2112, 7168),
    (256, 4096, 7168),
    (256, 7168, 2048),
    (256, 24576, 1536),
    (512, 2112, 7168),
    (512, 7168, 16384),
    (1024, 7168, 16384),
    (1024, 24576, 1536),
    (2048, 2112, 7168),
    (2048, 7168, 16384),
    (8192, 2112, 7168),
    (8192, 7168, 16384),
    (8192, 24576, 1536),
)
OF_WEIGHTS = (7168, 16384), (2112, 7168), (4096, 7168), (7168, 2048), (24576, 1536)
FEW_SHAPES = tuple((m, n, k) for n, k in OF_WEIGHTS for m in (16, 32, 64, 128))
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
    """One shape: of each kind of call the medians of TFLOPS, MHz and watts, and how many times as fast as it the kernel is.

    `differing`: words of D that are not those of a kind.
    """

    shape: Shape
    entry: str
    tflops: dict[str, float]
    megahertz: dict[str, float]
    watts: dict[str, float]
    over: dict[str, float]
    differing: dict[str, int]


@dataclass(frozen=True)
class Peers:
    """What else is timed: the kernels of another checkout, DeepGEMM's, and so many entries of the next costs."""

    before: Kernels | None
    deepgemm: DeepGemm | None
    near: int = 0

    def calls(self, kernels: Kernels, shape: Shape, sets: list[Operands]) -> dict[str, list[Callable[[], Any]]]:
        cheapest = sorted(entries_for(shape[0]), key=lambda entry: splits.cost(entry, *shape))
        found = {entry.name: kernels.launches(entry, sets) for entry in cheapest[1 : 1 + self.near]}
        if self.before:
            found["before"] = self.before.launches(self.before.splits.chosen(*shape), sets)
        if self.deepgemm and self.deepgemm.has("Normal", 1, *shape):
            found["deepgemm"] = [*map(self.deepgemm.prepared, sets)]
        return found


def measure(kernels: Kernels, shape: Shape, entry: Entry, peers: Peers, *, bits: bool) -> Row:
    m, n, k = shape
    sets = sets_of(shape)
    launches = kernels.launches(entry, sets)
    others = peers.calls(kernels, shape, sets)
    differing = {}
    if bits:
        check_bits(sets[0], launches[0], k)
        differing = {name: count_differing(sets[0], launches[0], calls[0]) for name, calls in others.items()}
    work = 2e-6 * m * n * k  # TFLOP x 1e6 / us
    calls = {
        "scaled_mm": [*map(block_scaled, sets)],
        "ours": launches,
        "one scale": [*map(tensor_scaled, sets)],
        **others,
    }
    times = in_turns(calls, work)
    rates = {name: work / statistics.median(some.microseconds) for name, some in times.items()}
    megahertz = {name: statistics.median(some.megahertz) for name, some in times.items()}
    watts = {name: statistics.median(some.watts) for name, some in times.items()}
    over = {name: ratio_of(times[name], times["ours"]) for name in times if name != "ours"}
    return Row(shape, entry.name, rates, megahertz, watts, over, differing)


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
            work / statistics.median(times[name].microseconds),
            {peer: ratio_of(times[peer], times[name]) for peer in ("scaled_mm", "whole tiles")},
        )
        for name, (entry, count) in keys.items()
    ]


def expert_rows(kernels: Kernels, of: int, rows: int, n: int, k: int, peers: Peers) -> list[Beside]:
    """Both layouts of `of` experts with `rows` each, beside the GEMM of one B with all rows."""
    shape = of * rows, n, k
    group = torch.arange(of, device="cuda", dtype=torch.int32)
    packed, owners = sets_of(shape, 1, of), group.repeat_interleave(rows)
    layouts = {f"aligned {step}": (packed, owners, step) for step in (128, 256) if rows % step == 0}
    layouts["masked"] = sets_of((rows, n, k), of, of), torch.full_like(group, rows), None
    calls = {"one B": kernels.launches(bindings.chosen(*shape), sets_of(shape))}
    timed: list[
        tuple[str, str, str, tuple[str, ...]]
    ] = []  # of a row: its calls, entry and layout, and those beside it
    for layout, (sets, groups, step) in layouts.items():
        work, beside = ([rows] * of, n, k), ["one B"]
        candidates = experts.candidates(step)
        chosen, *others = sorted(candidates, key=lambda entry: experts.cost(entry, *work))
        for entry in (chosen, *others[: peers.near]):
            calls[f"{layout} {entry.name}"] = [of_experts(kernels.gemm(entry), o, groups) for o in sets]
        calls[f"{layout} {chosen.name}"][0]()
        check_samples(sets[0], k, groups=groups.cpu().numpy(), group_rows=step or 128)
        if peers.before:
            entry = peers.before.experts.chosen(*work, step)
            calls[f"{layout} before"] = [of_experts(peers.before.gemm(entry), o, groups) for o in sets]
            beside.append(f"{layout} before")
        kind = "MGroupedMasked" if step is None else "MGroupedContiguous"
        if peers.deepgemm and step != 256 and peers.deepgemm.has(kind, of, *sets[0].shape):
            calls[f"{layout} deepgemm"] = [peers.deepgemm.prepared(o, kind, groups) for o in sets]
            differing = count_differing(sets[0], calls[f"{layout} {chosen.name}"][0], calls[f"{layout} deepgemm"][0])
            print(f"{of} x {rows} x {n} x {k}, {layout}: {differing} words differ from DeepGEMM's")
            beside.append(f"{layout} deepgemm")
        timed += [
            (f"{layout} {entry.name}", entry.name, layout, tuple(beside)) for entry in (chosen, *others[: peers.near])
        ]
    tera = 2e-6 * of * rows * n * k
    times = in_turns(calls, tera)
    return [
        Beside(
            (of, rows, n, k),
            entry,
            layout,
            entry == experts.chosen([rows] * of, n, k, layouts[layout][2]).name,
            tera / statistics.median(times[name].microseconds),
            {peer.removeprefix(f"{layout} "): ratio_of(times[peer], times[name]) for peer in beside},
        )
        for name, entry, layout, beside in timed
    ]


def print_whole(rows: list[Row]) -> None:
    """Of each kind TFLOPS at MHz and watts, and how many times as fast as it the kernel is."""
    for row in rows:
        m, n, k = row.shape
        print(f"{m:>6} x{n:>6} x{k:>6}  {row.entry}")
        for name, rate in row.tflops.items():
            over = f"{row.over[name]:8.3f} x" if name in row.over else ""
            differing = f"  {row.differing[name]} of {m * n} words differ" if name in row.differing else ""
            print(
                f"{name:>26}{rate:8.0f} TFLOPS{row.megahertz[name]:7.0f} MHz{row.watts[name]:6.0f} W{over}{differing}"
            )
    for name in dict.fromkeys(name for row in rows for name in row.over if name not in bindings.ENTRIES):
        ratios = [row.over[name] for row in rows if name in row.over]
        print(f"geometric mean over {name}, {len(ratios)} shapes: {statistics.geometric_mean(ratios):.3f}")


def print_beside(title: str, rows: list[Beside]) -> None:
    """`*` marks the entry that is chosen; a number behind a name is how many times as fast as that."""
    print(f"{title}\n{'shape':>26}  {'entry':<40}{'':<12}{'TFLOPS':>8}")
    for row in rows:
        over = "".join(f"  {ratio:.2f} x {peer}" for peer, ratio in row.over.items())
        mark = "*" if row.chosen else ""
        print(f"{' x '.join(map(str, row.shape)):>26}  {row.entry + mark:<40}{row.how:<12}{row.tflops:8.0f}{over}")


TABLES = ("whole", "few", "parts", "experts")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="also write the rows and the hashes of the code here")
    parser.add_argument("--entries", action="store_true", help="also time every other entry at every shape")
    parser.add_argument("--more", action="store_true", help="also whole tiles at more shapes")
    parser.add_argument("--only", nargs="+", choices=TABLES, default=TABLES, help="which tables")
    parser.add_argument("--before", type=Path, help="another checkout, whose kernel is also timed")
    parser.add_argument("--deepgemm", type=Path, help="a folder of DeepGEMM's compiled kernels, which are also timed")
    parser.add_argument("--near", type=int, default=0, help="how many entries of the next costs are also timed")
    arguments = parser.parse_args()
    torch.empty(1, device="cuda")  # makes the primary context current
    kernels = Kernels()
    before = arguments.before and Kernels(arguments.before / "gpu")
    peers = Peers(before, arguments.deepgemm and DeepGemm(arguments.deepgemm), arguments.near)
    device = torch.cuda.get_device_name(0)
    built = next(iter(kernels.built.values()))
    sensors = Sensors()
    print(f"{device}, driver {sensors.driver}, at most {sensors.limit:.0f} W, torch {torch.__version__}")
    print(f"{built[0].compiler} ({built[0].origin}), {built[1].assembler}, {ROUNDS} rounds of {WARM} + {TIMED} ms")
    found: dict[str, list[Any]] = {key: [] for key in (*TABLES, "every_entry")}
    if "whole" in arguments.only:
        shapes = SHAPES + (MORE_SHAPES + OTHER_SHAPES if arguments.more else ())
        found["whole"] = [measure(kernels, shape, bindings.chosen(*shape), peers, bits=True) for shape in shapes]
        print_whole(found["whole"])
    if "few" in arguments.only:
        found["few"] = [measure(kernels, shape, splits.chosen(*shape), peers, bits=False) for shape in FEW_SHAPES]
        print_whole(found["few"])
    if "parts" in arguments.only:
        found["parts"] = [row for shape in FEW_ROWS for row in few_rows(kernels, shape)]
        print_beside("K in parts", found["parts"])
    if "experts" in arguments.only:
        found["experts"] = [row for each in EXPERTS for row in expert_rows(kernels, *each, peers)]
        print_beside("Experts x rows x N x K", found["experts"])
    if arguments.entries:
        every = bindings.ENTRIES.values()
        found["every_entry"] = [
            measure(kernels, shape, entry, Peers(None, None), bits=False) for shape in SHAPES for entry in every
        ]
    if arguments.json:
        record: dict[str, Any] = {"device": device, "driver": sensors.driver, "watts": sensors.limit}
        record |= {"torch": torch.__version__, "sampled_outputs": SAMPLED**2, "code": kernels.record()}
        record |= {"before": before.record()} if before else {}
        record |= {name: [asdict(row) for row in rows] for name, rows in found.items()}
        arguments.json.write_text(json.dumps(record, indent=1))


if __name__ == "__main__":
    main()
