"""Tensor memory: allocation, loads and stores of every shape against the layouts, and what nobody may do with it."""

import subprocess
from pathlib import Path

import numpy as np
import pytest

from refsim.errors import RefsimError
from refsim.layouts import fragment
from refsim.layouts.families.tcgen05 import MOVES, Move
from refsim.ptx.async_ops.queue import POLICIES
from refsim.ptx.machine.assemblers import find_ptxas
from refsim.reference.assembler import ptx_version, releases
from tests.ptx.tcgen05_kernels import COMMIT, TensorKernel, registers

COLUMNS = 256
NUMBERS = np.arange(128 * COLUMNS, dtype=np.uint32).reshape(128, COLUMNS)
CASES = [(move, count) for move in MOVES for count in sorted({1, 2, 8, move.most}) if move.columns * count <= COLUMNS]


def places(move: Move, count: int, split: int) -> tuple[np.ndarray, np.ndarray]:
    """Row and column of each lane's registers."""
    if move.shape == "16x32bx2":
        lane, value = np.arange(32)[:, None], np.arange(count)[None, :]
        row, column = np.broadcast_arrays(lane % 16, value + split * (lane // 16))
        return row, column
    return fragment(f"tcgen05.ld.{move.shape}.x{count}").elements


def dumped(move: Move, count: int, packs: bool, split: int, offset: int) -> np.ndarray:
    """What each thread loads, through a kernel that stores the registers: (128, registers)."""
    number = move.registers * count
    apart = f", {split}" if move.shape == "16x32bx2" else ""
    load = (
        f"tcgen05.ld.sync.aligned.{move.shape}.x{count}{'.pack::16b' * packs}.b32 {registers(number)}, [%own+{offset}]"
    )
    body = f"{load}{apart}; tcgen05.wait::ld.sync.aligned;" + "".join(
        f"st.global.b32 [%out+{4 * i}], %r{i};" for i in range(number)
    )
    out, _ = TensorKernel(body, columns=number, filled=COLUMNS, dumps=False).run(tensor=NUMBERS)
    return out


def title(value: object) -> str:
    return value.shape if isinstance(value, Move) else str(value)


@pytest.mark.parametrize(("move", "count"), CASES, ids=title)
def test_a_load_has_the_words_that_the_layout_says(move: Move, count: int) -> None:
    """The lower and the upper rows of the warp; the words are numbered lane by lane."""
    split = 7 if move.shape == "16x32bx2" else 0
    for lane in range(0, 32, move.rows):
        got = dumped(move, count, False, split, lane << 16)
        row, column = places(move, count, split)
        want = np.concatenate([NUMBERS[32 * warp + lane + row, column] for warp in range(4)])
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("move", MOVES, ids=title)
def test_two_columns_are_packed_into_a_register(move: Move) -> None:
    split = 9 if move.shape == "16x32bx2" else 0
    got = dumped(move, 2, True, split, 3)
    row, column = places(move, 2, 0)
    column = column * 2 + 3 + (split * (np.arange(32) // 16)[:, None] if split else 0)
    if split:
        row, value = np.broadcast_arrays(np.arange(32)[:, None] % 16, np.arange(2)[None, :])
        column = 2 * (value + split * (np.arange(32) // 16)[:, None]) + 3
    low, high = (
        np.concatenate([NUMBERS[32 * warp + row, column + part] & 0xFFFF for warp in range(4)]) for part in (0, 1)
    )
    np.testing.assert_array_equal(got, low | high << 16)


@pytest.mark.parametrize("unpacks", [False, True])
@pytest.mark.parametrize("move", MOVES, ids=title)
def test_a_store_is_a_load_the_other_way(move: Move, unpacks: bool) -> None:
    """Each thread stores numbers of its own; words that no register goes to stay as they were."""
    count, offset = 2, 5
    number = move.registers * count
    split = 5 if move.shape == "16x32bx2" else 0
    given = "".join(f"mad.lo.u32 %r{i}, %t, 65537, {i * 4097};" for i in range(number))
    apart = f" {split}," if split else ""
    body = (
        f"{given} tcgen05.st.sync.aligned.{move.shape}.x{count}{'.unpack::16b' * unpacks}.b32 [%own+{offset}],{apart} "
    )
    out, _ = TensorKernel(f"{body}{registers(number)}; tcgen05.wait::st.sync.aligned;", filled=64, columns=64).run(
        tensor=NUMBERS[:, :64].copy()
    )
    want = NUMBERS[:, :64].copy()
    row, column = places(move, count, split)
    for warp in range(4):
        values = (32 * warp + np.arange(32, dtype=np.uint32))[:, None] * 65537 + np.arange(
            number, dtype=np.uint32
        ) * 4097
        if unpacks:
            want[32 * warp + row, 2 * column + offset] = values & 0xFFFF
            want[32 * warp + row, 2 * column + offset + 1] = values >> 16
        else:
            want[32 * warp + row, column + offset] = values
    np.testing.assert_array_equal(out, want)


def test_columns_are_found_where_others_hold_none() -> None:
    """Three warps allocate 64 columns each, and give them back."""
    body = """
@%zero tcgen05.dealloc.cta_group::1.sync.aligned.b32 %base, 64;
bar.sync 0;
setp.eq.u32 %lane, %warp, 1; @%lane tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%at], 128;
bar.sync 0;
setp.eq.u32 %lane, %warp, 2; ld.shared.b32 %x1, [slot];
@%lane tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%s], 64;
bar.sync 0; ld.shared.b32 %base, [%s]; shl.b32 %own, %warp, 21; add.u32 %own, %own, %base;
mov.b32 %r0, %x1; mov.b32 %r1, %base;
tcgen05.st.sync.aligned.32x32b.x2.b32 [%own], {%r0, %r1}; tcgen05.wait::st.sync.aligned;
@%zero tcgen05.dealloc.cta_group::1.sync.aligned.b32 %x1, 128;
tcgen05.ld.sync.aligned.32x32b.x2.b32 {%r0, %r1}, [%own]; tcgen05.wait::ld.sync.aligned;
st.global.v2.b32 [%out], {%r0, %r1};
"""
    out, _ = TensorKernel(body, columns=2, allocated=64, dumps=False).run()
    assert (out == [0, 128]).all()


@pytest.mark.parametrize("policy", POLICIES)
def test_a_warp_waits_for_columns_until_others_give_theirs_back(policy: str) -> None:
    """Warps 1 and 2 ask for all columns while warp 0 holds them; each gives back what it got, behind a store and a load."""
    warps = """
setp.eq.u32 %yes, %warp, 3; @%yes bra MEET;
@%zero bra GIVE;
mad.lo.u32 %x1, %warp, 4, %s;
tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%x1], 512;
ld.shared.b32 %x2, [%x1]; shl.b32 %x3, %warp, 21; add.u32 %x3, %x3, %x2; add.u32 %r0, %t, 7;
tcgen05.st.sync.aligned.32x32b.x1.b32 [%x3], {%r0}; tcgen05.wait::st.sync.aligned;
tcgen05.ld.sync.aligned.32x32b.x1.b32 {%r1}, [%x3]; tcgen05.wait::ld.sync.aligned; st.global.b32 [%out], %r1;
tcgen05.dealloc.cta_group::1.sync.aligned.b32 %x2, 512; bra MEET;
GIVE: tcgen05.dealloc.cta_group::1.sync.aligned.b32 %base, 512;
MEET: bar.sync 0;
@%zero tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%at], 512;
"""
    out, trace = TensorKernel(warps, columns=1, dumps=False).run(policy=policy, seed=3)
    assert trace.findings == ()
    np.testing.assert_array_equal(out[32:96, 0], np.arange(32, 96) + 7)


STORE = "tcgen05.st.sync.aligned.32x32b.x1.b32 [%own], {%r0}; tcgen05.wait::st.sync.aligned;"
UNWAITED = "tcgen05.ld.sync.aligned.32x32b.x1.b32 {%r0}, [%own];"
LOAD = f"{UNWAITED} tcgen05.wait::ld.sync.aligned;"


@pytest.mark.parametrize(
    ("body", "code", "what"),
    [
        ("add.u32 %own, %own, 2097152;" + LOAD, "tensor-memory-misuse", "lanes are 0 to 31 addresses lane 32"),
        ("add.u32 %own, %own, 65536;" + LOAD, "tensor-memory-misuse", "lane 1 is not a multiple of 32"),
        ("add.u32 %own, %own, %t;" + LOAD, "tensor-memory-misuse", "that of the warp's first thread"),
        ("add.u32 %own, %own, 512;" + LOAD, "out-of-bounds", "columns 512 to 512 of tensor memory"),
        (
            "add.u32 %own, %own, 510;" + LOAD.replace("x1", "x4").replace("{%r0}", registers(4)),
            "out-of-bounds",
            "510 to 513",
        ),
        (
            "@%zero tcgen05.alloc.cta_group::1.sync.aligned.b32 [%q], 48;",
            "tensor-memory-misuse",
            "48 columns: a power of two",
        ),
        (
            "@%zero tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%at], 32;",
            "deadlock",
            "for 32 columns of tensor memory, of which the block holds columns 0 to 511",
        ),
        (
            "@%zero tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;"
            "@%zero tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%at], 32;",
            "tensor-memory-misuse",
            "given up its permission",
        ),
        (
            "@%zero tcgen05.dealloc.cta_group::1.sync.aligned.b32 %base, 256;",
            "tensor-memory-misuse",
            "columns 0 to 255 are not an allocation of the block, which holds columns 0 to 511",
        ),
        (STORE.partition(" tcgen05.wait")[0] + LOAD, "tensor-memory-in-flight", "lacks a tcgen05.wait::st"),
        (
            UNWAITED + STORE.replace("%r0", "%r1"),
            "tensor-memory-in-flight",
            "lacks a tcgen05.wait::ld",
        ),
        (UNWAITED + "mov.u32 %r0, 1;", "register-in-flight", "overwrites %r0, which tcgen05.ld"),
        (
            UNWAITED.replace("x1", "x2").replace("{%r0}", registers(2)) + "add.u32 %x0, %r0, 1; mov.u32 %r1, 1;",
            "register-in-flight",
            "overwrites %r1, which tcgen05.ld",
        ),
        ("@%first " + LOAD, "divergent-sync", "waits? at tcgen05.ld"),
    ],
)
def test_mistakes(body: str, code: str, what: str) -> None:
    with pytest.raises(RefsimError, match=what) as caught:
        TensorKernel(body, columns=32, filled=32).run()
    assert caught.value.code == code


def test_single_ctas_and_pairs_do_not_mix() -> None:
    """As ptxas refuses it: .cta_group is one for all tcgen05 instructions of a kernel, also for those that no thread reaches."""
    with pytest.raises(
        RefsimError, match=r"tcgen05\.commit\.cta_group::2.* with tcgen05\.alloc\.cta_group::1"
    ) as caught:
        TensorKernel(f"bra.uni BEHIND; {COMMIT.replace('group::1', 'group::2')} BEHIND:", columns=32, filled=32).run()
    assert caught.value.code == "malformed-ptx"


def test_who_reads_what_was_loaded_waits_for_it() -> None:
    """PTX ISA, register dependencies: the wait is for those that reuse the words, or the registers."""
    body = f"{UNWAITED} add.u32 %r0, %r0, 1; tcgen05.wait::ld.sync.aligned; {STORE}"
    out, trace = TensorKernel(body, columns=32, filled=32).run(tensor=NUMBERS[:, :32].copy())
    assert trace.findings == ()
    np.testing.assert_array_equal(out[:, 0], NUMBERS[:, 0] + 1)


def test_words_that_nobody_wrote_are_followed() -> None:
    """What a load brings of new columns is undefined until somebody stores to them; undefined registers stay so on the way."""
    with pytest.raises(RefsimError, match="words of tensor memory were never written; it reached an output") as caught:
        TensorKernel("", columns=32).run()
    assert caught.value.code == "uninitialised"
    lost = ".shared .align 4 .b32 nothing; ld.shared.b32 %r0, [nothing];"
    with pytest.raises(RefsimError, match=r"4 B at shared address .* were never written; they reached an output"):
        TensorKernel(lost + STORE, columns=32, filled=32).run()
    _, trace = TensorKernel(f"{lost} {STORE} mov.u32 %r0, %t; {STORE}", columns=32, filled=32).run()
    assert trace.findings == ()


def test_halves_of_an_undefined_register_stay_undefined_in_both_columns() -> None:
    """.unpack::16b puts the second register into columns 2 and 3: 2 is stored to anew, 3 stays."""
    body = """.shared .align 4 .b32 nothing; mov.u32 %r0, %t; ld.shared.b32 %r1, [nothing];
tcgen05.st.sync.aligned.32x32b.x2.unpack::16b.b32 [%own], {{%r0, %r1}}; tcgen05.wait::st.sync.aligned;
add.u32 %x1, %own, {}; tcgen05.st.sync.aligned.32x32b.x{}.b32 [%x1], {}; tcgen05.wait::st.sync.aligned;"""
    with pytest.raises(RefsimError, match="were never written"):
        TensorKernel(body.format(2, 1, "{%r0}"), columns=32, filled=32).run()
    _, trace = TensorKernel(body.format(2, 2, "{%r0, %r0}"), columns=32, filled=32).run()
    assert trace.findings == ()


def test_columns_that_were_allocated_again_are_new() -> None:
    body = """
@%zero tcgen05.dealloc.cta_group::1.sync.aligned.b32 %base, 512; bar.sync 0;
@%zero tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%at], 512; bar.sync 0;
"""
    with pytest.raises(RefsimError, match="never written"):
        TensorKernel(body, columns=32, filled=32).run()


@pytest.mark.parametrize("target", ["sm_103a", "sm_100f", "sm_110a"])
def test_other_targets_of_the_families_have_it(target: str) -> None:
    out, _ = TensorKernel("", columns=32, filled=32, target=target).run(tensor=NUMBERS[:, :32].copy())
    np.testing.assert_array_equal(out, NUMBERS[:, :32])


@pytest.mark.parametrize("target", ["sm_100", "sm_120a", "sm_90a"])
def test_other_targets_have_none(target: str) -> None:
    with pytest.raises(RefsimError, match=f"{target} has no tcgen05") as caught:
        TensorKernel("", columns=32, target=target).run()
    assert caught.value.code == "wrong-target"


def test_ptxas_takes_these_kernels(tmp_path: Path) -> None:
    """What the tests run is legal PTX, for every target that a ptxas here knows."""
    if find_ptxas() is None:
        pytest.skip("ptxas is not installed: pip install 'nvidia-cuda-nvcc==13.0.*'")
    release, program = releases()[-1]
    text = tmp_path / "k.ptx"
    for target in ("sm_100a", "sm_103a", "sm_110a"):
        text.write_text(TensorKernel("", filled=64, target=target).text.replace("9.0", ptx_version(release)))
        subprocess.run([program, "-arch", target, str(text), "-o", str(tmp_path / "k.cubin")], check=True)
