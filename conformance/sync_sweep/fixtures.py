"""The kernels of tests/ptx that have asynchronous copies, tensor cores and clusters, declared with oracles of their own."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim import numerics
from refsim.conversions import encode
from refsim.kernels import Kernel, Struct
from refsim.layouts import tensor_map
from refsim.testing.kernel_files import load_kernel_file

TESTS = Path(__file__).parents[2] / "tests/ptx"
BULK, RING, PIPELINE = TESTS / "bulk_copies.cu", TESTS / "relaxed_ring.cu", TESTS / "pipeline.cu"


@dataclass(frozen=True)
class Turns:
    """How often a kernel goes round; its inputs are always the same."""

    count: int = 5


Run = Callable[[Any, Turns], Any]
Want = Callable[[Turns], Any]


def declared(entry: str, file: Path, run: Run, want: Want, ptx: str | None = None) -> Kernel:
    """A kernel with one output; `run` launches an entry of a file, or of a PTX text, and gives what it wrote."""
    return Kernel(
        entry,
        lambda problem: {"out": np.asarray(want(problem))},
        None,
        lambda launcher, problem: {"out": run(launcher, problem)},
        {"out": ""},
        recipe=Turns,
        **({"ptx": ptx} if ptx else {"file": file}),
    )


# ---- bulk copies
def tiles(turns: Turns) -> NDArray[np.uint32]:
    """Boxes of 1 KiB, one for each turn."""
    return np.random.default_rng(9).integers(0, 1 << 20, (turns.count, 256), np.uint32)


def ring(entry: str, rows: int, blocks: int) -> Kernel:
    """Boxes of `rows` rows of 128 bytes go through two stages, and are added up by each block."""

    def run(launcher: Any, turns: Turns) -> Any:
        x, out = launcher.upload(tiles(turns), name="x"), launcher.output(256 * blocks, np.uint32, name="out")
        made = tensor_map("uint8", (128, 8 * turns.count), (128, rows), address=x.address)
        threads, options = (96, {}) if blocks == 1 else (64, {"cluster": blocks})
        launcher.launch(entry, blocks, threads, [made, np.uint32(turns.count), out], 2048, **options)
        return launcher.read(out)

    return declared(entry, BULK, run, lambda turns: np.tile(tiles(turns).sum(axis=0, dtype=np.uint32), blocks))


def groups(launcher: Any, turns: Turns) -> Any:
    out = launcher.output(128 * turns.count, np.uint32, name="out")
    launcher.launch("groups", 1, 128, [out, np.uint32(turns.count)], 1024)
    return launcher.read(out)


def runs(launcher: Any, turns: Turns) -> Any:
    x, out = launcher.upload(np.arange(256, dtype=np.uint32), name="x"), launcher.output(256, np.uint32, name="out")
    sums = launcher.upload(np.full(256, 5, np.uint32), name="sums", writable=True)
    launcher.launch("runs", 1, 32, [x, out, sums, np.uint32(1024)], 1024)
    return np.stack([launcher.read(out), launcher.read(sums)])


def runs_wanted(turns: Turns) -> Any:
    moved = np.arange(1, 257, dtype=np.uint32)
    return np.stack([moved + 1000 * (np.arange(256) == 0), moved + 5]).astype(np.uint32)


def exchange(launcher: Any, turns: Turns) -> Any:
    out = launcher.output(256, np.uint32, name="out")
    launcher.launch("exchange", 4, 32, [out], cluster=2)
    return launcher.read(out)


def exchanged(turns: Turns) -> Any:
    sent = np.array([[100 * (block ^ 1) + lane for lane in range(32)] for block in range(4)], np.uint32)
    return np.stack([sent, sent + 7], axis=1).reshape(-1)


def multicast(launcher: Any, turns: Turns) -> Any:
    tile, run = halves()
    x, y = launcher.upload(tile, name="x"), launcher.upload(run.view(np.uint32), name="y")
    out = launcher.output(1280, np.uint32, name="out")
    made = tensor_map("uint8", (128, 16), (128, 8), address=x.address)
    launcher.launch("multicast", 2, 64, [made, y, out, np.uint32(3)], 2560, cluster=2)
    return launcher.read(out)


def halves() -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    draw = np.random.default_rng(7)
    return draw.integers(0, 256, (16, 128), np.uint8), draw.integers(0, 256, 512, np.uint8)


def multicast_wanted(turns: Turns) -> Any:
    tile, run = halves()
    return np.tile(np.concatenate([tile.reshape(-1), run]).view(np.uint32), 2)


CORNER = Struct(np.zeros(5, np.int32).tobytes(), 4)


def box_in(launcher: Any, turns: Turns) -> Any:
    x, out = launcher.upload(tiles(turns), name="x"), launcher.output(256, np.uint32, name="out")
    made = tensor_map("uint8", (128, 8 * turns.count), (128, 8), address=x.address)
    numbers = (np.uint32(each) for each in (2, 0, 1024, 1024))
    launcher.launch("box_in", 1, 64, [made, CORNER, *numbers, out], 1024)
    return launcher.read(out)


def box_out(launcher: Any, turns: Turns) -> Any:
    x = launcher.upload(tiles(turns), name="x")
    y = launcher.upload(np.zeros(256, np.uint32), name="y", writable=True)
    made = tensor_map("uint8", (128, 8), (128, 8), address=y.address)
    launcher.launch("box_out", 1, 64, [made, CORNER, *(np.uint32(each) for each in (2, 0, 1024)), x], 1024)
    return launcher.read(y)


def first_tile(turns: Turns) -> Any:
    return tiles(turns)[0]


def box_add(launcher: Any, turns: Turns) -> Any:
    x = launcher.upload(tiles(turns)[0], name="x")
    y = launcher.upload(np.full(256, 3, np.uint32), name="y", writable=True)
    made = tensor_map("uint32", (32, 8), (32, 8), strides=(128,), address=y.address)
    launcher.launch("box_add", 1, 64, [made, np.int32(0), np.int32(0), np.uint32(1024), x], 1024)
    return launcher.read(y)


# ---- tensor cores
def products(entry: str) -> Kernel:
    """Stages of ones that two blocks fill for each other."""

    def run(launcher: Any, turns: Turns) -> Any:
        codes = launcher.upload(np.full(turns.count * 2048, 0x38, np.uint8), name="codes")
        c = launcher.output(1024, np.float32, name="c")
        launcher.launch(entry, 2, 160, [codes, c, np.uint32(turns.count)], cluster=2)
        return launcher.read(c).view(np.uint32)

    return declared(entry, RING, run, lambda turns: np.full(1024, 32 * turns.count, np.float32).view(np.uint32))


def operands(turns: Turns) -> tuple[NDArray[np.uint16], NDArray[np.uint16]]:
    draw = np.random.default_rng(0)
    x, w = (encode(draw.standard_normal((count, 128 * turns.count)), "bf16") for count in (3, 64))
    return x, w


def linear(launcher: Any, turns: Turns) -> Any:
    x, w = operands(turns)
    given = [launcher.upload(each.reshape(-1), name=name) for each, name in ((x, "x"), (w, "w"))]
    y = launcher.output(3 * 64, np.uint16, name="y")
    extents = (np.int32(each) for each in (3, 128 * turns.count, 64))
    launcher.launch("linear", 1, 128, [*given, y, *extents], 3 * (16 + 64) * 256)
    return launcher.read(y).reshape(3, 64)


def linear_wanted(turns: Turns) -> Any:
    zeros, formats = np.zeros((3, 64), np.float32), {"a_format": "bf16", "b_format": "bf16"}
    sums = numerics.mma(*operands(turns), zeros, unit="mma.sync", target="sm_90a", k=16, **formats)
    return encode(sums.astype(np.float64), "bf16")


wgmma = load_kernel_file(TESTS / "wgmma_kernels.py")
KIND = wgmma.Wgmma(16, 32, "f32", "e4m3", "e4m3")
ADD = "add.f32 %d0, %d0, %d0;"
ONE = [wgmma.FENCED, KIND.issue(), *wgmma.WAIT]
PAIR = [
    *(wgmma.FENCED, KIND.issue(), wgmma.WAIT[0], KIND.issue(first=8), wgmma.WAIT[0]),
    *("wgmma.wait_group.sync.aligned 1;", ADD, "wgmma.wait_group.sync.aligned 0;", "add.f32 %d8, %d8, %d8;"),
]
REGISTERS = ["mov.b32 %a0, %a1;", wgmma.FENCED, KIND.issue("registers"), *wgmma.WAIT]


def multiplied(name: str, body: list[str], first: dict[int, float], sets: int = 1) -> Kernel:
    """Products of ones by a warpgroup: 32 in all of D but the registers that are named."""

    def run(launcher: Any, turns: Turns) -> Any:
        image = launcher.upload(np.full(wgmma.BYTES, 0x38, np.uint8), name="image")
        count = 128 * KIND.registers * sets
        held = launcher.upload(np.zeros(count, np.uint32), name="c")
        fragment = launcher.upload(np.full(512, 0x38383838, np.uint32), name="fragment")
        out = launcher.output(count, np.float32, name="out")
        a = np.zeros((64, 32), np.uint8)
        words = wgmma.word(wgmma.tiled(a, "K", "none"), 0), wgmma.word(wgmma.tiled(a[:16], "K", "none"), 8192)
        launcher.launch("k", 1, 128, [image, held, fragment, out, *wgmma.words_of(*words)])
        return launcher.read(out).view(np.uint32)

    def want(turns: Turns) -> Any:
        found = np.full((128, KIND.registers * sets), 32, np.float32)
        for register, value in first.items():
            found[:, register] = value
        return found.reshape(-1).view(np.uint32)

    return declared(name, BULK, run, want, wgmma.kernel(KIND, body, sets=sets))


# ---- mbarriers and clusters
def handed_on(name: str, text: str, blocks: int, want: NDArray[np.uint32]) -> Kernel:
    """A PTX kernel whose 64 threads of each block write a word each."""

    def run(launcher: Any, turns: Turns) -> Any:
        out = launcher.upload(np.zeros(64 * blocks, np.uint32), name="out", writable=True)
        launcher.launch("k", blocks, 64, [out], cluster=blocks)
        return launcher.read(out)

    return declared(name, BULK, run, lambda turns: want, text)


phases, clusters, stores = (
    load_kernel_file(TESTS / f"test_{name}.py") for name in ("phase_order", "clusters", "async_stores")
)
FROM_BELOW = (163 - np.arange(64)).astype(np.uint32)
ACROSS = np.concatenate([227 - np.arange(64), np.zeros(64)]).astype(np.uint32)
NEXT = np.concatenate([1000 + np.arange(64), np.arange(64)]).astype(np.uint32)
FAR = {"arrive": "release.cluster.", "wait": "acquire.cluster."}
# Each block stores into the memory of the next one and arrives there; the inits alone are handed to the cluster.
NEIGHBOUR = f"""
    .shared .align 8 .b64 ready; mov.u32 %r13, ready; setp.ne.u32 %p1, %r1, 0; @%p1 bra $made;
    mbarrier.init.shared.b64 [%r13], 64;
    {clusters.INIT_FENCE}
    $made:
    barrier.cluster.arrive.relaxed.aligned;
    barrier.cluster.wait.acquire.aligned;
    mapa.shared::cluster.u32 %r11, %r8, %r7; mapa.shared::cluster.u32 %r14, %r13, %r7;
    st.shared::cluster.u32 [%r11], %r10;
    mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r14];
    $wait: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p2, [%r13], 0; @!%p2 bra $wait;
    ld.shared.u32 %r12, [%r8]; st.global.u32 [%d3], %r12; ret;"""


def of_clusters(body: str) -> str:
    return f"{clusters.HEAD}.visible .entry k(.param .u64 out)\n{{ {clusters.PROLOGUE} {body} }}\n"


def left_open(text: str) -> str:
    """Without the meeting of the cluster at the end, where nobody reaches another block's memory any more."""
    at = text.rindex("barrier.cluster.arrive")
    return text[:at] + text[text.index(";", text.index("barrier.cluster.wait", at)) + 1 :]


def stored(launcher: Any, turns: Turns) -> Any:
    out = launcher.upload(np.zeros(256, np.uint32), name="out", writable=True)
    launcher.launch("k", 2, 32, [out], cluster=2)
    return launcher.read(out).reshape(2, 32, 4)


def stored_wanted(turns: Turns) -> Any:
    found = np.full((2, 32, 4), 100, np.uint32)
    found[..., 0] = stores.sent()
    return found


STORE = (
    stores.HEAD.replace("BYTES", "128").replace("MEET", stores.MEET)
    + f"{stores.ST}.u32 [%r8], %r6, [%r9];\n{stores.WAIT}\n{stores.TAIL}"
)

TURNING = ("ring", "cluster_ring", "groups", "relaxed_ring", "linear")
KERNELS = (
    ring("ring", 8, 1),
    ring("cluster_ring", 4, 2),
    declared(
        "groups",
        BULK,
        groups,
        lambda turns: (
            1000 * np.arange(turns.count, dtype=np.uint32).repeat(128)
            + np.tile(np.arange(128, dtype=np.uint32), turns.count)
        ),
    ),
    declared("runs", BULK, runs, runs_wanted),
    declared("exchange", BULK, exchange, exchanged),
    declared("multicast", BULK, multicast, multicast_wanted),
    declared("box_in", BULK, box_in, first_tile),
    declared("box_out", BULK, box_out, first_tile),
    declared("box_add", BULK, box_add, lambda turns: 3 + 2 * first_tile(turns)),
    products("relaxed_ring"),
    declared("linear", PIPELINE, linear, linear_wanted),
    multiplied("wgmma_once", [*ONE, ADD], {0: 64}),
    multiplied("wgmma_pair", PAIR, {0: 64, 8: 64}, sets=2),
    multiplied("wgmma_registers", REGISTERS, {}),
    handed_on("mbarrier_of_a_block", phases.HEAD + phases.BLOCK.format(**phases.ORDERED), 1, FROM_BELOW),
    handed_on(
        "mbarrier_fenced",
        phases.HEAD + phases.BLOCK.format(**phases.ORDERED | phases.RELAXED | phases.FENCED),
        1,
        FROM_BELOW,
    ),
    handed_on("mbarrier_of_a_cluster", phases.HEAD + left_open(phases.CLUSTER.format(**FAR)), 2, ACROSS),
    handed_on("ring_of_blocks", of_clusters(clusters.RING), 2, NEXT),
    handed_on("arrival_at_a_neighbour", of_clusters(NEIGHBOUR), 2, NEXT),
    declared("stores_counted", BULK, stored, stored_wanted, left_open(STORE)),
)
