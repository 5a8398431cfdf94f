"""Laws of cp.async: which bytes arrive, and when they may, against a model of groups in plain Python."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refsim import ptx
from refsim.errors import RefsimError
from refsim.reference.instructions import words
from refsim.testing.strategies import share

LANES = 40
POLICIES = [("eager", 0), ("lazy", 0), ("random", 1), ("random", 2)]
OLD = 0xEE
UNCHECKED = ptx.Checks(copies="off")
HEAD = """.version 9.0
.target sm_80
.address_size 64
.entry k(.param .u64 source, .param .u64 sizes, .param .u64 out) {
    .reg .b32 %r<12>; .reg .b64 %d<12>; .reg .pred %p<3>;
    .shared .align 16 .b8 tile[8192];
    mov.u32 %r1, %tid.x; mov.u32 %r2, tile;
    ld.param.u64 %d1, [source]; ld.param.u64 %d2, [sizes]; ld.param.u64 %d3, [out];
    mad.wide.u32 %d4, %r1, 4, %d2; ld.global.u32 %r3, [%d4];
"""


def copied(
    opcode: str, size: int, last: str, raw: np.ndarray, sizes: np.ndarray, policy: tuple[str, int]
) -> np.ndarray:
    """What lies in shared memory behind one cp.async per lane, `size` bytes each, and a wait."""
    body = f"""
    setp.ne.u32 %p1, %r3, 0;
    mad.lo.u32 %r4, %r1, {size}, %r2; mad.wide.u32 %d5, %r1, {size}, %d1;
    {opcode} [%r4], [%d5], {size}{last};
    cp.async.wait_all;
    mov.u32 %r6, 0;
    NEXT: add.u32 %r7, %r4, %r6; ld.shared.u32 %r8, [%r7];
    mad.wide.u32 %d6, %r1, {size}, %d3; cvt.u64.u32 %d7, %r6; add.u64 %d6, %d6, %d7; st.global.u32 [%d6], %r8;
    add.u32 %r6, %r6, 4; setp.lt.u32 %p2, %r6, {size}; @%p2 bra NEXT;
    ret;
}}
"""
    out = np.zeros(LANES * size, np.uint8)
    ptx.load(HEAD + body).launch(
        "k", (1,), (LANES,), [raw.view(np.uint8).copy(), sizes, out], policy=policy[0], seed=policy[1]
    )
    return out.reshape(LANES, size)


FORMS = [("ca", 4), ("ca", 8), ("ca", 16), ("cg", 16)]


@pytest.mark.parametrize(("cop", "size"), FORMS)
@pytest.mark.parametrize("policy", POLICIES)
@share(1 / 5)
@given(raw=words(2 * LANES), pick=words(LANES))
def test_bytes_beyond_the_source_size_are_zero(
    policy: tuple[str, int], cop: str, size: int, raw: np.ndarray, pick: np.ndarray
) -> None:
    sizes = (pick % np.uint64(size + 1)).astype(np.uint32)
    got = copied(f"cp.async.{cop}.shared.global", size, ", %r3", raw, sizes, policy)
    want = raw.view(np.uint8)[: LANES * size].reshape(LANES, size).copy()
    want[np.arange(size)[None, :] >= sizes[:, None]] = 0
    assert np.array_equal(got, want)


@pytest.mark.parametrize(("last", "ignoring"), [("", None), (", %p1", True), (", !%p1", False)])
@pytest.mark.parametrize("hint", ["", ".L2::128B"])
def test_an_ignored_source_is_zeros(hint: str, last: str, ignoring: bool | None) -> None:
    raw = np.random.default_rng(5).integers(0, 1 << 63, 2 * LANES, dtype=np.uint64)
    flags = (np.arange(LANES) % 3 == 0).astype(np.uint32)
    got = copied(f"cp.async.cg.shared::cta.global{hint}", 16, last, raw, flags, ("lazy", 0))
    want = raw.view(np.uint8)[: LANES * 16].reshape(LANES, 16).copy()
    if ignoring is not None:
        want[(flags != 0) == ignoring] = 0
    assert np.array_equal(got, want)


def test_nothing_is_read_for_an_ignored_source() -> None:
    """Zero bytes from an address that no buffer holds."""
    body = """cp.async.ca.shared.global [%r2], [16], 16, 0; cp.async.wait_all; ld.shared.u32 %r8, [%r2];
    st.global.u32 [%d3], %r8; ret;\n}\n"""
    out = np.ones(1, np.uint32)
    ptx.load(HEAD + body).launch("k", (1,), (1,), [np.zeros(4, np.uint8), np.zeros(1, np.uint32), out])
    assert out[0] == 0


OPERATIONS = st.lists(
    st.one_of(st.just("issue"), st.just("commit"), st.integers(0, 3).map(lambda n: f"wait {n}"), st.just("wait all")),
    min_size=1,
    max_size=14,
)


def arrived(operations: list[str]) -> tuple[int, set[int]]:
    """How many copies were issued, and which of them a wait has covered, by the text of the ISA."""
    groups: list[list[int]] = []
    open_group: list[int] = []
    issued, there = 0, set[int]()
    for operation in operations:
        if operation == "issue":
            open_group.append(issued)
            issued += 1
        elif operation == "commit":
            groups.append(open_group)
            open_group = []
        elif operation == "wait all":
            there |= {copy for group in groups for copy in group} | set(open_group)
        else:
            pending = int(operation.split()[1])
            there |= {copy for group in groups[: max(0, len(groups) - pending)] for copy in group}
    return issued, there


@given(operations=OPERATIONS, seed=st.integers(0, 99))
def test_a_copy_arrives_between_its_issue_and_the_wait_that_covers_it(operations: list[str], seed: int) -> None:
    issued, there = arrived(operations)
    lines = ["mad.lo.u32 %r4, %r1, 4, %r2; mad.wide.u32 %d5, %r1, 4, %d1; mad.wide.u32 %d6, %r1, 4, %d3;"]
    lines += [f"st.shared.u32 [%r4+{160 * slot}], {OLD};" for slot in range(issued)]
    slot = 0
    for operation in operations:
        if operation == "issue":
            lines.append(f"cp.async.ca.shared.global [%r4+{160 * slot}], [%d5+{160 * slot}], 4;")
            slot += 1
        else:
            names = {"commit": "cp.async.commit_group;", "wait all": "cp.async.wait_all;"}
            lines.append(names.get(operation) or f"cp.async.wait_group {operation.split()[1]};")
    for slot in range(issued):
        lines.append(f"ld.shared.u32 %r8, [%r4+{160 * slot}]; st.global.u32 [%d6+{160 * slot}], %r8;")
    program = ptx.load(HEAD + "\n".join([*lines, "ret;", "}", ""]))
    source = np.arange(max(issued, 1) * LANES, dtype=np.uint32) + 1000
    for policy in ptx.POLICIES:
        out = np.zeros_like(source)
        arguments = [source.copy(), np.zeros(LANES, np.uint32), out]
        program.launch("k", (1,), (LANES,), arguments, policy=policy, seed=seed, checks=UNCHECKED)
        for copy in range(issued):
            rows = slice(LANES * copy, LANES * (copy + 1))
            new, old = out[rows] == source[rows], out[rows] == OLD
            assert (new | old).all()
            if copy in there or policy == "eager":
                assert new.all(), (policy, copy)
            elif policy == "lazy":
                assert old.all(), copy
    out = np.zeros_like(source)
    try:
        program.launch("k", (1,), (LANES,), [source.copy(), np.zeros(LANES, np.uint32), out])
        assert len(there) == issued
    except RefsimError as error:
        assert error.code == "read-before-wait"
        assert len(there) < issued


@pytest.mark.parametrize(
    "statement",
    [
        "cp.async.cg.shared.global [%r2], [%d1], 8;",
        "cp.async.ca.shared.global [%r2], [%d1], 12;",
        "cp.async.ca.shared.global [%r2], [%d1], 4, 5;",
    ],
)
def test_sizes_that_no_copy_has_are_refused(statement: str) -> None:
    with pytest.raises(RefsimError) as caught:
        ptx.load(f"{HEAD}{statement} ret;\n}}\n").launch(
            "k", (1,), (1,), [np.zeros(32, np.uint8), np.zeros(1, np.uint32), np.zeros(1, np.uint32)]
        )
    assert caught.value.code == "invalid-operand"


@pytest.mark.parametrize(
    ("statement", "code"),
    [
        ("cp.async.cg.shared.global [%r2+8], [%d1], 16;", "misaligned"),
        ("cp.async.cg.shared.global [%r2], [%d1+8], 16;", "misaligned"),
        ("cp.async.cg.shared.global [%r2+8192], [%d1], 16;", "out-of-bounds"),
        ("cp.async.cg.shared.global [%r2], [%d1+64], 16;", "out-of-bounds"),
        ("cp.async.cg.shared.global [%r2], [%d1+64], 16, 3;", "out-of-bounds"),
    ],
)
@pytest.mark.parametrize("policy", ptx.POLICIES)
def test_a_stray_copy_is_a_fault_where_it_is_issued(policy: str, statement: str, code: str) -> None:
    """Nothing waits for it: the fault does not depend on when the bytes would have moved."""
    with pytest.raises(RefsimError) as caught:
        ptx.load(f"{HEAD}{statement} ret;\n}}\n").launch(
            "k", (1,), (1,), [np.zeros(64, np.uint8), np.zeros(1, np.uint32), np.zeros(1, np.uint32)], policy=policy
        )
    assert caught.value.code == code
    assert "cp.async" in caught.value.where


@pytest.mark.parametrize("given", [", 16, 15", ", 16, 14", ""])
def test_the_last_byte_of_a_source_must_exist(given: str) -> None:
    """62 bytes, of which a copy of 16 from byte 48 on may read 14."""
    program = ptx.load(
        f"{HEAD}cp.async.cg.shared.global [%r2], [%d1+48]{given or ', 16'}; cp.async.wait_all; ret;\n}}\n"
    )
    arguments = [np.zeros(62, np.uint8), np.zeros(1, np.uint32), np.zeros(1, np.uint32)]
    if given.endswith("14"):
        program.launch("k", (1,), (1,), arguments)
        return
    with pytest.raises(RefsimError, match=r"cp\.async") as caught:
        program.launch("k", (1,), (1,), arguments)
    assert caught.value.code == "out-of-bounds"
