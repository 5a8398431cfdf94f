"""Speed of the simulated GPU: seconds of a warm launch, checks on, after the outputs were compared with the oracle.

    python benchmarks/simulator.py

The FP8 quantiser on n = 1,000,003 elements of N(0, 1), beside its NumPy oracle: median of 9 after two warm-up runs. A
linear layer in bf16, 1 x 4096 x 4096 on 64 blocks of 128 threads, with the arithmetic of the tensor core and with exact
sums, with numba and without: least of 5. Small problems of a campaign, oracle and comparison included: median of 9.
sm_90a, one process.
"""

import statistics
import time
from pathlib import Path

import numpy as np

from refsim import device, encode, oracles, ptx
from refsim.device.compile import compile_ptx
from refsim.numerics.fast import compiled
from refsim.oracles import fp8_quantize
from refsim.testing.kernel_files import load_kernel_file
from refsim.testing.laws import observe
from refsim.testing.matrices import Values

N, THREADS, BLOCKS, REPEATS = 1_000_003, 256, 489, 9
GPU = Path(__file__).parents[1] / "gpu"
SOURCE = GPU / "kernels/fp8_quantize.cu"
bindings = load_kernel_file(GPU / "linear_bindings.py")
LINEAR, LEAST_OF = "linear_n64_s1", 5
BATCH, OUTPUT, REDUCTION = 1, 4096, 4096
SMALL = ((1, 64, 128), (3, 100, 256))


def launches(program: ptx.Program, codes: np.ndarray, kind: str) -> tuple[float, float, np.ndarray]:
    """Seconds of the amax and of the cast launch, and the codes that were written."""
    memory = ptx.GlobalMemory()
    x = memory.allocate(codes.nbytes, "x", initial=codes, writable=False)
    amax = memory.allocate(4, "amax", initial=bytes(4))
    q, scale = memory.allocate(N, "q"), memory.allocate(4, "scale")
    n = np.uint64(N)
    begin = time.perf_counter()
    program.launch(f"fp8_amax_{kind}", (BLOCKS,), (THREADS,), [np.uint64(x), n, np.uint64(amax)], memory=memory)
    middle = time.perf_counter()
    args = [np.uint64(x), n, np.uint64(amax), np.uint64(q), np.uint64(scale), np.float32(1e-12)]
    program.launch(f"fp8_quantize_{kind}_e4m3", (BLOCKS,), (THREADS,), args, memory=memory)
    return middle - begin, time.perf_counter() - middle, memory.read(q, N)


def quantiser() -> None:
    program = ptx.load(compile_ptx(SOURCE, "sm_90a").text)
    values = np.random.default_rng(1).standard_normal(N).astype(np.float32)
    print(f"n = {N:,}, grid {BLOCKS} x {THREADS}, median of {REPEATS}")
    print("input  amax [s]  cast [s]  amax + cast [s]  oracle [s]  simulator / oracle")
    for kind in ("bf16", "f16", "f32"):
        codes = encode(values, kind, overflow="inf")
        begin = time.perf_counter()
        want, _ = fp8_quantize.quantize(codes, kind)
        oracle = time.perf_counter() - begin
        runs = [launches(program, codes, kind) for _ in range(REPEATS + 2)]
        assert all(np.array_equal(q, want) for _, _, q in runs), "the simulator disagrees with the oracle"
        amax, cast = (statistics.median(run[stage] for run in runs[2:]) for stage in (0, 1))
        print(
            f"{kind:5}  {amax:8.3f}  {cast:8.3f}  {amax + cast:15.3f}  {oracle:10.3f}  {(amax + cast) / oracle:18.1f}"
        )


def layer(program: ptx.Program, arithmetic: str) -> tuple[float, np.ndarray]:
    """The least seconds of a launch of the linear layer, and the Y of the last."""
    entry = bindings.LINEAR_ENTRIES[LINEAR]
    x, w = (Values("gaussian", seed) for seed in (1, 2))
    operands = [x.codes("bf16", BATCH, REDUCTION), w.codes("bf16", OUTPUT, REDUCTION)]
    times = []
    for _ in range(LEAST_OF):
        memory = ptx.GlobalMemory()
        at = [memory.allocate(codes.nbytes, "operand", initial=codes.reshape(-1).view(np.uint8)) for codes in operands]
        y = memory.allocate(2 * BATCH * OUTPUT, "y")
        pointers = [np.uint64(address) for address in (*at, 0, y)]
        extents = [np.uint32(extent) for extent in (BATCH, OUTPUT, REDUCTION, OUTPUT)]
        begin = time.perf_counter()
        program.launch(
            LINEAR,
            (OUTPUT // entry.output_tile,),
            (entry.threads,),
            [*pointers, *extents],
            shared_bytes=entry.shared_bytes,
            memory=memory,
            arithmetic=arithmetic,
        )
        times.append(time.perf_counter() - begin)
    want = oracles.linear(*operands, None, target="sm_90a", reduction=entry.reduction())
    got = memory.read(y, 2 * BATCH * OUTPUT).view(np.uint16)
    assert arithmetic == "exact" or np.array_equal(got, want.reshape(-1)), "the simulator disagrees with the oracle"
    return min(times), got


def linear_layer() -> None:
    program = ptx.load(compile_ptx(GPU / "kernels/linear.cu", "sm_90a").text)
    print(f"\n{LINEAR}, {BATCH} x {OUTPUT} x {REDUCTION}, least of {LEAST_OF}")
    print(f"exact sums                 {layer(program, 'exact')[0]:8.3f} s")
    with_numba = compiled.kernels() is not None
    if with_numba:
        print(f"tensor core, with numba    {layer(program, 'silicon')[0]:8.3f} s")
        compiled.kernels.cache_clear()
    wins, compiled.wins = compiled.wins, lambda *shape: False
    print(f"tensor core, NumPy alone   {layer(program, 'silicon')[0]:8.3f} s{'' if with_numba else ' (no numba here)'}")
    compiled.wins = wins


def small_problem(shape: tuple[int, int, int]) -> None:
    problem = bindings.Linear(*shape, Values("gaussian", 1), Values("gaussian", 2), None, LINEAR)
    print(f"\none problem of {'x'.join(map(str, shape))}, compiled PTX cached, oracle included, median of {REPEATS}")
    for name in ("sim:eager", "sim:lazy", "sim:random", "sim"):
        simulated, times = device.open(name), []
        for _ in range(REPEATS + 2):
            begin = time.perf_counter()
            seen = observe(bindings.LINEAR, problem, simulated)
            times.append(time.perf_counter() - begin)
            assert not seen.mismatches
        under = "all three policies" if name == "sim" else name.removeprefix("sim:")
        print(f"{under:18} {1000 * statistics.median(times[2:]):8.1f} ms")


def main() -> None:
    quantiser()
    linear_layer()
    for shape in SMALL:
        small_problem(shape)


if __name__ == "__main__":
    main()
