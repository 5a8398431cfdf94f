"""The copy engine's arithmetic: runs and boxes that are added to memory, boxes that a map's type rounds or flushes.

A form is an entry of its own module; each block of it handles 256 bytes. The documents do not specify how a reduction
rounds, whether it keeps subnormals, and which NaN it writes. A GPU ran `CopyForm.ptx` once; the simulator runs the
identical text on identical inputs.
"""

import zlib
from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray

from refsim.formats import BF16, F16, F32, Format
from refsim.formats.rows import F64
from refsim.kernel_code import KernelCode
from refsim.kernels import Launcher
from refsim.layouts import tensor_map

Words = NDArray[np.unsignedinteger]

STEM = "copy_arithmetic"
WORDS_OF_A_FORM = 6144
BYTES = 256
"""The size of a block's run or box."""
_THREADS = BYTES // 4
_HEAD = """.version 8.3
.target sm_90
.address_size 64
.visible .entry form({map}.param .u64 memory, .param .u64 given) {{
    .reg .b32 %r<12>;
    .reg .b64 %d<12>;
    .reg .pred %p<3>;
    .shared .align 128 .b8 tile[256];
    .shared .align 8 .b8 bar[8];
    ld.param.u64 %d1, [memory];
    ld.param.u64 %d2, [given];
    {take}
    mov.u32 %r1, %tid.x;
    mov.u32 %r2, %ctaid.x;
    shl.b32 %r3, %r1, 2;
    mul.wide.u32 %d4, %r2, 256;
    cvt.u64.u32 %d5, %r3;
    add.s64 %d6, %d2, %d4;
    add.s64 %d6, %d6, %d5;
    mul.lo.u32 %r4, %r2, {elements};
    mov.u32 %r5, tile;
    add.u32 %r6, %r5, %r3;
    mov.u32 %r7, bar;
    setp.ne.u32 %p1, %r1, 0;
"""
_WRITE = """    ld.global.u32 %r8, [%d6];
    st.shared.u32 [%r6], %r8;
    fence.proxy.async.shared::cta;
    bar.sync 0;
    @%p1 bra $done;
    add.s64 %d1, %d1, %d4;
    {copy}
    cp.async.bulk.commit_group;
    cp.async.bulk.wait_group 0;
$done:
    ret;
}}
"""
_LOAD = """    @%p1 bra $wait;
    mbarrier.init.shared.b64 [%r7], 1;
    fence.mbarrier_init.release.cluster;
    mbarrier.arrive.expect_tx.shared.b64 _, [%r7], 256;
    {copy}
$wait:
    bar.sync 0;
$poll:
    mbarrier.try_wait.parity.shared.b64 %p2, [%r7], 0;
    @!%p2 bra $poll;
    ld.shared.u32 %r8, [%r6];
    st.global.u32 [%d6], %r8;
    ret;
}}
"""


@dataclass(frozen=True)
class CopyForm:
    """One operation: "run add.noftz.f16", "box add bfloat16", "load tfloat32", "store float32_ftz".

    `holds` is the format of its elements, `way` is run, box, load or store, `of` the operation and the PTX type of a
    run, or the type of a map.
    """

    way: str
    of: str
    holds: Format

    @property
    def name(self) -> str:
        """Return the name of the form."""
        return f"{self.way} {self.of}"

    @property
    def map_type(self) -> str | None:
        """Return the data type of the tensor map, or None for a run."""
        return None if self.way == "run" else self.of.rpartition(" ")[2]

    @property
    def code(self) -> KernelCode:
        """Return the code that a device's launcher loads."""
        return KernelCode(ptx=self.ptx)

    @property
    def ptx(self) -> str:
        """Return the module, with one entry, `form`."""
        has_map = self.map_type is not None
        take = "mov.b64 %d3, map;\n    cvta.param.u64 %d3, %d3;" if has_map else ""
        elements = BYTES // self.holds.code_dtype.itemsize
        head = _HEAD.format(map=".param .align 64 .b8 map[128], " if has_map else "", take=take, elements=elements)
        match self.way:
            case "run":
                copy = f"cp.reduce.async.bulk.global.shared::cta.bulk_group.{self.of} [%d1], [%r5], 256;"
            case "box":
                operation = self.of.partition(" ")[0]
                copy = f"cp.reduce.async.bulk.tensor.1d.global.shared::cta.{operation}.tile.bulk_group [%d3, {{%r4}}], [%r5];"
            case "store":
                copy = "cp.async.bulk.tensor.1d.global.shared::cta.tile.bulk_group [%d3, {%r4}], [%r5];"
            case _:
                copy = (
                    "cp.async.bulk.tensor.1d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
                    "[%r5], [%d3, {%r4}], [%r7];"
                )
        return head + (_LOAD if self.way == "load" else _WRITE).format(copy=copy)

    def operands(self) -> tuple[Words, Words]:
        """Return the initial memory and the incoming elements, 6,144 each, equal for every form of a format. All pairs
        of special values come first, then pairs of near exponents, which round, then random patterns."""
        fmt = self.holds
        draw = np.random.default_rng(zlib.crc32(fmt.name.encode()))
        special = _special(fmt)
        pairs = np.array([*product(special, special)], np.uint64)
        rest = WORDS_OF_A_FORM - len(pairs)
        words = (
            draw.integers(0, 1 << fmt.bits, (rest, 2), np.uint64, endpoint=False)
            if fmt.bits < 64
            else _wide(draw, rest)
        )
        near = rest // 2
        exponents = (words[:near] >> np.uint64(fmt.mantissa_bits)) & np.uint64((1 << fmt.exponent_bits) - 1)
        span = np.uint64(fmt.mantissa_bits + 3)
        wanted = np.stack([exponents[:, 0], exponents[:, 0] + exponents[:, 1] % span - span // np.uint64(2)], axis=1)
        wanted &= np.uint64((1 << fmt.exponent_bits) - 1)
        words[:near] ^= (exponents ^ wanted) << np.uint64(fmt.mantissa_bits)
        both = np.concatenate([pairs, words]).astype(fmt.code_dtype)
        return both[:, 0].copy(), both[:, 1].copy()

    def run(self, launcher: Launcher) -> Words:
        """Return the elements after the operation: of memory, or of shared memory for a load; `launcher` has loaded
        `ptx`."""
        held, given = self.operands()
        memory = launcher.upload(held, name="memory", writable=self.way != "load")
        other = (
            launcher.output(WORDS_OF_A_FORM, held.dtype, name="given")
            if self.way == "load"
            else launcher.upload(given, name="given")
        )
        box = BYTES // held.itemsize
        maps = (
            ()
            if self.map_type is None
            else (tensor_map(self.map_type, (WORDS_OF_A_FORM,), (box,), address=memory.address),)
        )
        launcher.launch("form", WORDS_OF_A_FORM // box, _THREADS, [*maps, memory, other])
        return np.asarray(launcher.read(other if self.way == "load" else memory))


def _wide(draw: np.random.Generator, rows: int) -> NDArray[np.uint64]:
    return np.frombuffer(draw.bytes(16 * rows), np.uint64).reshape(rows, 2).copy()


def _special(fmt: Format) -> list[int]:
    """Return the special patterns of a format, with both signs. They are zero, the limits of subnormal and normal
    numbers, one and its neighbors, halves of a last place, infinity, a quiet and a signaling NaN."""
    m, top = fmt.mantissa_bits, (1 << fmt.exponent_bits) - 1
    magnitudes = [
        *(0, 1, 2, 3, (1 << m - 1), (1 << m) - 1, 1 << m, (1 << m) + 1),
        *(fmt.bias - step << m for step in (0, 1, m, m + 1, m + 2)),
        *((fmt.bias << m) + step for step in (1, 2, 3)),
        *((fmt.bias - m - 1 << m) + step for step in (1, (1 << m) - 1)),
        *((top << m) - step for step in (1, 2)),
        (top - 1 - m - 1 << m),
        *(top << m, (top << m) + (1 << m - 1), (top << m) + 1, (top << m) + (1 << m) - 1),
    ]
    return [sign << fmt.bits - 1 | magnitude for magnitude in magnitudes for sign in (0, 1)]


_HALVES = (("float16", F16), ("bfloat16", BF16))
_SINGLES = ("float32", "float32_ftz", "tfloat32", "tfloat32_ftz")
COPY_FORMS = (
    *(CopyForm("run", f"add.noftz.{row.name}", row) for row in (F16, BF16)),
    *(CopyForm("run", f"add.{row.name}", row) for row in (F32, F64)),
    *(CopyForm("run", f"{name}.{row.name}", row) for name in ("min", "max") for row in (F16, BF16)),
    *(CopyForm("box", f"{name} {type}", row) for name in ("add", "min", "max") for type, row in _HALVES),
    *(CopyForm(way, type, F32) for way in ("load", "store") for type in _SINGLES),
    CopyForm("box", "add float32", F32),
    CopyForm("box", "add float64", F64),
    CopyForm("box", "add float32_ftz", F32),
    CopyForm("box", "add tfloat32", F32),
)
"""Forms that a driver or a chip might reject are last."""
