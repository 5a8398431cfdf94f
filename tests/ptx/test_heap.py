"""Device malloc and free: right kernels run silently, wrong ones are told with both lines, a launch may begin again."""

from pathlib import Path

import numpy as np
import pytest

from refsim import ptx
from refsim.device.compile import compile_ptx
from refsim.device.schedules import SeededPolicy, outcomes
from refsim.errors import RefsimError
from refsim.ptx.memory.heap import LIMIT, RED_ZONE, ROOM

HEAD = r"""
struct Node {
    int v; Node* next;
    __device__ Node(int x) : v(x), next(nullptr) {}
    virtual __device__ ~Node() { v = -1; }
};
__device__ int* kept[64];
__device__ Node* list;
"""
# Each kernel is a body of `void name(int* out, int n)`, launched with 64 threads and n = 16.
RIGHT = {
    "own": "int* p = (int*)malloc(n * 4); if (!p) { out[t] = -1; return; }\nfor (int i = 0; i < n; i++) p[i] = i + t;\n"
    "int s = 0; for (int i = 0; i < n; i++) s += p[i];\nout[t] = s; free(p); free(nullptr);",
    "objects": "Node* q = new Node(t); Node* base = q; out[t] = base->v + (int)((unsigned long long)q % 16); delete base;\n"
    "int* r = new int[n]; r[n - 1] = 4; out[t] += r[n - 1]; delete[] r;",
    "aligned": "char* z = (char*)__nv_aligned_device_malloc(100, 256); z[99] = t;\n"
    "out[t] = z[99] + (int)((unsigned long long)z % 256); free(z);\n"
    "if (__nv_aligned_device_malloc(100, 24)) out[t] = -1;",
    "copied": "int* p = (int*)malloc(64); memset(p, 0, 64); p[3] = t; int* q = (int*)malloc(64); memcpy(q, p, 64);\n"
    "out[t] = q[3] + q[4]; free(p); free(q);",
    "together": "__shared__ int* p; if (t == 0) p = (int*)malloc(blockDim.x * 4);\n__syncthreads(); p[t] = t;\n"
    "__syncthreads(); out[t] = p[t ^ 33];\n__syncthreads(); if (t == 5) free(p);",
    "again": "int s = 0; for (int i = 0; i < 8; i++) { int* p = (int*)malloc(1000000); if (!p) { s = -1; break; }\n"
    "p[t] = i; p[249999] = i; s += p[t]; free(p); } if (t < 7) out[t] = s;",
    "kept_by_one": "int* p = (int*)malloc(8); p[0] = t; kept[t] = p; out[t] = t;",
    "a_list": "if (t == 0) { list = nullptr; for (int i = 0; i < 5; i++) { Node* q = new Node(i); q->next = list; list = q; }\n"
    "for (Node* q = list; q; q = q->next) out[q->v] = q->v; }",
    "none_left": "if (t == 0) { int c = 0; char* p; while ((p = (char*)malloc(1 << 20))) { kept[c++] = (int*)p; } out[0] = c;\n"
    "free(kept[3]); out[1] = malloc(8 << 20) == nullptr; p = (char*)malloc(1 << 20); out[2] = p != nullptr;\n"
    "kept[3] = (int*)p; }",
    "nothing": "void *p = malloc(0), *q = malloc(0); out[t] = p && q && p != q; free(p); free(q);",
}
WANT = {
    "own": lambda t: 120 + 16 * t,
    "objects": lambda t: t + 4,
    "aligned": lambda t: t,
    "copied": lambda t: t,
    "together": lambda t: t ^ 33,
    "kept_by_one": lambda t: t,
    "a_list": lambda t: t if t < 5 else 0,
    "again": lambda t: 28 if t < 7 else 0,
    "none_left": lambda t: [7, 1, 1][t] if t < 3 else 0,
    "nothing": lambda t: 1,
}
# The code, the text that names the other place, and after how many line ends of the body the two stand.
# fmt: off
WRONG = {
    "past": ("out-of-bounds", "0 B past the end of the 64 B from call.malloc", "int* p = (int*)malloc(n * 4); // made\n"
             "p[n] = 1; // here\nout[t] = p[n]; free(p);"),
    "before": ("out-of-bounds", "it starts 4 B before the 64 B from call.malloc", "int* p = (int*)malloc(n * 4); // made\n"
               "p[-1] = 1; // here\nfree(p);"),
    "after": ("use-after-free", "which call.free", "int* p = (int*)malloc(n * 4); p[2] = 1; // made\nfree(p);\n"
              "out[t] = *(volatile int*)&p[2]; // here\n"),
    "twice": ("invalid-free", "which call.free", "int* p = (int*)malloc(n * 4); // made\nout[t] = t; free(p);\n"
              "free(p); // here\n"),
    "foreign": ("invalid-free", "byte 4 of argument 0", "out[t] = 1; // made\nfree(out + 1); // here\n"),
    "inside": ("invalid-free", "byte 8 of the 64 B from call.malloc", "int* p = (int*)malloc(n * 4); // made\n"
               "free(p + 2); // here\n"),
    "both": ("invalid-free", "for the second time", "__shared__ int* p; if (t == 0) p = (int*)malloc(4); // made\n"
             "__syncthreads();\nif (t < 2) free(p); // here\n"),
    "unwritten": ("uninitialised", "an output at", "int* p = (int*)malloc(n * 4); // made\nout[t] = p[1]; // here\nfree(p);"),
    "unsized": ("uninitialised", "the size of a block", "__shared__ int s[64]; // made\n"
                "kept[t] = (int*)malloc(4 + ((volatile int*)s)[t]); // here\n"),
    "race": ("race", "with no barrier between", "__shared__ int* p; if (t == 0) p = (int*)malloc(256); __syncthreads();\n"
             "p[t] = t; // made\nout[t] = *(volatile int*)&p[t ^ 33]; // here\n__syncthreads(); if (t == 0) free(p);"),
    "freed_early": ("race", "with no barrier between", "__shared__ int* p; if (t == 0) p = (int*)malloc(256);\n"
                    "__syncthreads(); p[t] = t; __syncthreads();\nout[t] = ((volatile int*)p)[t ^ 1]; // made\n"
                    "if (t == 40) free(p); // here\n"),
}
# fmt: on
LEAKS = {
    "lost": "int* p = (int*)malloc(n * 4); p[1] = n; // here\nout[t] = p[1];",
    "overwritten": "int* p = (int*)malloc(8); p[0] = t; // here\nif (t == 0) kept[0] = p;\n"
    "__syncthreads(); if (t == 1) kept[0] = p;",
    "one": "if (t == 3) { int* p = (int*)malloc(n * 4); p[1] = n; // here\nout[t] = p[1]; }",
}
TAKERS = {
    "take": "int* p = kept[t ^ 1]; out[t] = p[0]; free(p);",
    "drop": "kept[t] = nullptr; out[t] = t;",
    "maybe": "int* p = (int*)malloc(8); __shared__ int never[64]; int v = ((volatile int*)never)[t]; p[0] = t; "
    "if (t > 100) p[0] = v; out[t] = p[0]; free(p);",
    "half": "struct Two { int a, b; }; __shared__ Two never[64]; never[t].a = t; Two* p = (Two*)malloc(8);\n"
    "*(volatile long long*)p = *(volatile long long*)&never[t]; kept[t] = (int*)p; out[t] = 0;",
    "other_half": "out[t] = ((volatile int*)kept[t])[1];",
}
BODIES = {**RIGHT, **{name: row[2] for name, row in WRONG.items()}, **LEAKS, **TAKERS}


def line_of(name: str, mark: str) -> str:
    """`heap.cu:LINE` where a mark stands in a kernel."""
    before, _, _ = source().partition(f"void {name}(")[2].partition(mark)
    return f"heap.cu:{source().partition(f'void {name}(')[0].count(chr(10)) + before.count(chr(10)) + 1}"


def source() -> str:
    return HEAD + "\n".join(
        f'extern "C" __global__ void {name}(int* out, int n) {{ int t = threadIdx.x;\n{body}\n}}'
        for name, body in BODIES.items()
    )


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> ptx.Program:
    path: Path = tmp_path_factory.mktemp("heap") / "heap.cu"
    path.write_text(source(), "utf-8")
    return ptx.load(compile_ptx(path, "sm_80").text, "sm_80")


SCHEDULES = [SeededPolicy("eager"), SeededPolicy("random", 1), SeededPolicy("lazy"), SeededPolicy("random", 2)]
LATER = pytest.mark.ci("two orders are tried in every run")
ORDERS = [*SCHEDULES[:2], *(pytest.param(order, marks=LATER) for order in SCHEDULES[2:])]


def launch(
    program: ptx.Program, entry: str, order: SeededPolicy, memory: ptx.GlobalMemory | None = None
) -> tuple[list[int], ptx.Trace]:
    out = np.zeros(64, np.int32)
    threads = 7 if entry == "again" else 64
    trace = program.launch(entry, 1, threads, [out, np.int32(16)], policy=order.policy, seed=order.seed, memory=memory)
    return out.tolist(), trace


@pytest.mark.parametrize("order", ORDERS, ids=str)
@pytest.mark.parametrize("name", RIGHT)
def test_a_right_kernel_is_silent(program: ptx.Program, name: str, order: SeededPolicy) -> None:
    out, trace = launch(program, name, order)
    assert out == [WANT[name](t) for t in range(64)]
    assert (*trace.findings, *trace.warnings, *trace.notes) == ()


@pytest.mark.parametrize("order", ORDERS, ids=str)
@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_kernel_is_told_with_both_lines(program: ptx.Program, name: str, order: SeededPolicy) -> None:
    code, says, _ = WRONG[name]
    with pytest.raises(RefsimError) as caught:
        launch(program, name, order)
    error = caught.value
    assert error.code == code
    assert says in error.what
    assert line_of(name, "// here") in (f"{error.where} {error.what}" if code == "race" else error.where)
    assert name in ("foreign", "unsized", "unwritten") or line_of(name, "// made") in f"{error.where} {error.what}"


@pytest.mark.parametrize("name", LEAKS)
def test_a_block_that_nobody_can_free_is_a_warning(program: ptx.Program, name: str) -> None:
    _, trace = launch(program, name, SeededPolicy("random", 3))
    (leak,) = trace.warnings
    assert leak.code == "leak"
    assert line_of(name, "// here") in leak.where
    said = {"lost": "64 blocks of 4096 B in all are", "overwritten": "63 blocks of 504 B in all are"}
    assert said.get(name, "1 block of 64 B in all is never freed") in leak.what
    assert name != "one" or "thread (3, 0, 0)" in leak.where


def test_the_heap_outlives_a_launch(program: ptx.Program) -> None:
    memory = ptx.GlobalMemory()
    for order in SCHEDULES:
        launch(program, "kept_by_one", order, memory)
        out, trace = launch(program, "take", order, memory)
        assert out == [t ^ 1 for t in range(64)]
        assert not trace.warnings
    assert memory.heap is not None
    assert memory.heap.used == 0


def test_a_launch_is_not_blamed_for_what_an_earlier_one_left(program: ptx.Program) -> None:
    memory = ptx.GlobalMemory()
    launch(program, "kept_by_one", SeededPolicy("eager"), memory)
    assert not launch(program, "drop", SeededPolicy("eager"), memory)[1].warnings


def test_a_launch_that_begins_again_finds_the_heap_as_it_was(program: ptx.Program) -> None:
    memory = ptx.GlobalMemory()
    launch(program, "kept_by_one", SeededPolicy("eager"), memory)
    assert memory.heap is not None
    before = memory.heap.state()
    out, trace = launch(program, "maybe", SeededPolicy("eager"), memory)
    assert out == list(range(64))
    assert [note.code for note in trace.notes] == ["uninitialised-unused"], "which takes a second run to know"
    assert memory.heap.state().live == before.live
    assert memory.heap.numbers == before.numbers + 64


def test_undefined_bytes_in_the_heap_are_unwritten_ones_later(program: ptx.Program) -> None:
    memory = ptx.GlobalMemory()
    _, trace = launch(program, "half", SeededPolicy("eager"), memory)
    assert not trace.findings
    with pytest.raises(RefsimError, match=r"byte 4 of the 8 B from call\.malloc") as caught:
        launch(program, "other_half", SeededPolicy("eager"), memory)
    assert caught.value.code == "uninitialised"


@pytest.mark.parametrize("name", ["kept_by_one", "a_list", "together"])
def test_where_a_block_lies_is_no_result_of_a_schedule(program: ptx.Program, name: str) -> None:
    def run(order: SeededPolicy) -> tuple[ptx.Trace, ptx.GlobalMemory]:
        memory = ptx.GlobalMemory()
        return launch(program, name, order, memory)[1], memory

    tried = list(outcomes(run, name, [SeededPolicy("eager"), *(SeededPolicy("random", seed) for seed in range(1, 9))]))
    assert all(outcome.is_compared for outcome in tried[1:])
    assert not [outcome.error for outcome in tried if outcome.error]


def test_blocks_lie_elsewhere_under_another_schedule(program: ptx.Program) -> None:
    """Else the law above says nothing."""
    found = set()
    for seed in range(1, 9):
        memory = ptx.GlobalMemory()
        launch(program, "kept_by_one", SeededPolicy("random", seed), memory)
        assert memory.heap is not None
        found.add(tuple(block.who for _, block in sorted(memory.heap.live.items())))
    assert len(found) > 1


def test_a_snapshot_holds_the_blocks(program: ptx.Program) -> None:
    memory = ptx.GlobalMemory()
    empty = memory.snapshot()
    launch(program, "kept_by_one", SeededPolicy("eager"), memory)
    full = memory.snapshot()
    launch(program, "take", SeededPolicy("eager"), memory)
    memory.restore(full)
    assert launch(program, "take", SeededPolicy("eager"), memory)[0] == [t ^ 1 for t in range(64)]
    memory.restore(empty)
    assert memory.heap is not None
    assert (memory.heap.used, memory.heap.live) == (0, {})
    assert not memory.heap.allowed.any()


def test_a_pointer_where_there_was_none_is_a_difference(program: ptx.Program) -> None:
    """Two pointers are alike wherever the heap placed what they mean; a pointer and a number are not."""
    memory = ptx.GlobalMemory()
    word = memory.allocate(8, "word", initial=np.zeros(8, np.uint8))
    launch(program, "kept_by_one", SeededPolicy("eager"), memory)
    assert memory.heap is not None
    first, second, *_ = (start + memory.space.base for start in sorted(memory.heap.live))
    position = word - memory.space.base
    for before, after, wanted in ((first, second, None), (first, 1, position), (1, second, position)):
        memory.write(word, np.array([before], np.uint64))
        then = memory.snapshot()
        memory.write(word, np.array([after], np.uint64))
        assert memory.first_difference(then) in ([wanted] if wanted is None else range(position, position + 8))


def test_memory_from_malloc_is_one_place_for_all_addresses(program: ptx.Program) -> None:
    """Buffers that are allocated later lie behind the heap's room, whatever it holds."""
    memory = ptx.GlobalMemory()
    launch(program, "kept_by_one", SeededPolicy("eager"), memory)
    assert memory.heap is not None
    region = memory.heap.region
    assert region.end - region.start == ROOM > 3 * LIMIT
    assert all(region.start + RED_ZONE <= block.start and block.start % 16 == 0 for block in memory.heap.live.values())
    later = memory.allocate(64, "later")
    assert later - memory.space.base >= region.end


def test_no_function_of_the_runtime_copies_or_fills(program: ptx.Program) -> None:
    """memcpy and memset of any size are code of the kernel itself."""
    names = {name for name, function in program.module.functions.items() if not function.is_defined}
    assert names == {"malloc", "free", "__cuda_syscall_aligned_malloc"}
