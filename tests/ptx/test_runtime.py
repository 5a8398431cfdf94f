"""The device runtime: what printf prints, how an assertion ends a kernel, memory from malloc."""

from pathlib import Path

import numpy as np
import pytest

from refsim import ptx
from refsim.device.compile import compile_ptx
from refsim.errors import RefsimError

SOURCE = r"""
extern "C" __global__ void words(int* counts) {
    const unsigned t = threadIdx.x + blockIdx.x * blockDim.x;
    if (t == 1) {
        counts[0] = printf("int %d unsigned %u hex %x wide %lld\n", -5, 4000000000u, 0xbeefu, -(1ll << 40));
        counts[1] = printf("%f %g %e|%5.2f|%-8.3f|%+d|%05d|% d|%#x|%.3s|%6c|%%|%*.*f\n", 1.5f, 0.1, 1e10, 3.14159, 2.5, 7,
                           42, 3, 255u, "abcdef", 'z', 9, 3, 2.0);
        counts[2] = printf("plain\n");
        counts[3] = printf("%s %p %hhd %a two\nlines\n", "text", (void*)4096, 300, -0.75);
    }
}
extern "C" __global__ void every(const int* x) { printf("%d\n", x[threadIdx.x + blockIdx.x * blockDim.x]); }
extern "C" __global__ void again(int* y) {
    __shared__ int never[32];
    printf("once from %d\n", (int)threadIdx.x);
    int v = *(volatile int*)&never[threadIdx.x];
    if (threadIdx.x > 100) y[threadIdx.x] = v;
}
extern "C" __global__ void unwritten() { __shared__ int never[32]; printf("%d\n", never[threadIdx.x]); }
extern "C" __global__ void asserting(const int* x) { assert(x[threadIdx.x] < 30); }
__device__ __forceinline__ void stop_if(bool wrong) {
    if (wrong) __trap();
}
extern "C" __global__ void trapping(const int* x) {
    stop_if(x[threadIdx.x] == 12);
}
extern "C" __global__ void breaking(const int* x) {
    if (x[threadIdx.x] == 12) __brkpt();
}
extern "C" __global__ void breaking_in_ptx(const int* x) {
    if (x[threadIdx.x] == 12) asm volatile("brkpt;");
}
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> ptx.Program:
    path: Path = tmp_path_factory.mktemp("runtime") / "runtime.cu"
    path.write_text(SOURCE, "utf-8")
    return ptx.load(compile_ptx(path, "sm_80").text, "sm_80")


def test_printf_prints_as_c_does(program: ptx.Program) -> None:
    counts = np.zeros(4, np.int32)
    trace = program.launch("words", 1, 32, [counts])
    who = "block (0, 0, 0) thread (1, 0, 0): "
    assert trace.printed == (
        f"{who}int -5 unsigned 4000000000 hex beef wide -1099511627776",
        f"{who}1.500000 0.1 1.000000e+10| 3.14|2.500   |+7|00042| 3|0xff|abc|     z|%|    2.000",
        f"{who}plain",
        f"{who}text 0x1000 44 -0x1.8p-1 two",
        f"{who}lines",
    )
    assert counts.tolist() == [4, 14, 0, 4]


@pytest.mark.parametrize(("policy", "seed"), [("eager", 0), ("random", 1)])
def test_every_thread_speaks_once(program: ptx.Program, policy: str, seed: int) -> None:
    x = np.arange(100, 164, dtype=np.int32)
    printed = program.launch("every", 2, 32, [x], policy=policy, seed=seed).printed
    assert sorted(printed) == sorted(f"block ({n // 32}, 0, 0) thread ({n % 32}, 0, 0): {100 + n}" for n in range(64))


def test_a_launch_that_begins_again_prints_once(program: ptx.Program) -> None:
    trace = program.launch("again", 1, 32, [np.zeros(32, np.int32)])
    assert len(trace.notes) == 1, "unwritten memory was read for nothing, which takes a second run to know"
    assert [line.rpartition(" ")[2] for line in trace.printed] == [str(thread) for thread in range(32)]


def test_unwritten_bits_that_are_printed_are_an_output(program: ptx.Program) -> None:
    with pytest.raises(RefsimError, match="a printed text") as caught:
        program.launch("unwritten", 1, 32, [])
    assert caught.value.code == "uninitialised"


def test_an_assertion_says_what_it_asserted(program: ptx.Program) -> None:
    program.launch("asserting", 1, 32, [np.arange(-2, 30, dtype=np.int32)])
    with pytest.raises(RefsimError) as caught:
        program.launch("asserting", 1, 32, [np.arange(32, dtype=np.int32)])
    error = caught.value
    assert error.code == "trap"
    assert "runtime.cu:20: void asserting(const int *): assertion `x[threadIdx.x] < 30` failed" in error.what
    assert "thread (30, 0, 0) of block (0, 0, 0)" in error.where


@pytest.mark.parametrize(
    ("entry", "says", "lines"),
    [
        ("trapping", "executed trap", (22, 25)),
        ("breaking", "executed brkpt", (28,)),
        ("breaking_in_ptx", "executed brkpt", (31,)),
    ],
)
def test_a_trap_and_a_breakpoint_show_their_lines(
    program: ptx.Program, entry: str, says: str, lines: tuple[int, ...]
) -> None:
    program.launch(entry, 1, 32, [np.arange(20, 52, dtype=np.int32)])
    with pytest.raises(RefsimError, match=says) as caught:
        program.launch(entry, 1, 32, [np.arange(32, dtype=np.int32)])
    assert caught.value.code == "trap"
    assert [f"runtime.cu:{line}" in caught.value.where for line in lines] == [True] * len(lines)
    assert "thread (12, 0, 0) of block (0, 0, 0)" in caught.value.where
