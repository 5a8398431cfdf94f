"""A pipeline of asynchronous copies, swizzled tiles and tensor cores: right under every policy, and every mutant caught."""

import re
from pathlib import Path

import numpy as np
import pytest

from refsim import device, numerics, ptx
from refsim.conversions import encode
from refsim.device.compile import compile_ptx
from refsim.errors import Kind, RefsimError
from refsim.layouts import bank_conflicts
from refsim.ptx.machine import launch

SOURCE = Path(__file__).with_name("pipeline.cu")
SHARED = 3 * (16 + 64) * 256
TARGETS = ("sm_80", "sm_90a")


def compiled(folder: Path, changes: dict[str, str] | None = None, target: str = "sm_90a") -> str:
    """The PTX of the kernel with some of its text changed."""
    text = SOURCE.read_text()
    for old, new in (changes or {}).items():
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    file = folder / "pipeline.cu"
    file.write_text(text)
    try:
        return compile_ptx(file, target).text
    except RefsimError as error:
        if error.kind is not Kind.MISSING:
            raise
        pytest.skip(f"the kernel cannot be compiled here: {error.what}")


def problem(rows: int, depth: int, columns: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(seed)
    values = (draw.standard_normal((count, depth)) for count in (rows, columns))
    x, w = (encode(value, "bf16") for value in values)
    return x, w


def launched(text: str, rows: int, depth: int, columns: int, **options: object) -> tuple[np.ndarray, ptx.Trace]:
    x, w = problem(rows, depth, columns)
    y = np.full((rows, columns), 0xDEAD, np.uint16)
    trace = ptx.load(text).launch(
        "linear",
        (columns // 64,),
        (128,),
        [x, w, y, np.int32(rows), np.int32(depth), np.int32(columns)],
        shared_bytes=SHARED,
        **options,
    )
    return y, trace


def expected(rows: int, depth: int, columns: int, arithmetic: str, target: str) -> np.ndarray:
    x, w = problem(rows, depth, columns)
    if arithmetic == "silicon":
        sums = numerics.mma(
            x,
            w,
            np.zeros((rows, columns), np.float32),
            unit="mma.sync",
            a_format="bf16",
            b_format="bf16",
            target=target,
            k=16,
        )
    else:
        sums = np.zeros((rows, columns), np.float32)
        for at in range(0, depth, 16):
            part = slice(at, at + 16)
            sums = numerics.exact_product(x[:, part], w[:, part], sums, a_format="bf16", b_format="bf16")
    return encode(sums.astype(np.float64), "bf16")


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("rows", "depth", "columns"), [(1, 128, 64), (3, 256, 64), (16, 640, 128)])
def test_every_policy_gives_the_bits_of_the_definition(
    rows: int, depth: int, columns: int, target: str, tmp_path: Path
) -> None:
    """Rows beyond the last are copies of zero bytes; one tile, two, and more than there are stages."""
    text = compiled(tmp_path, target=target)
    want = expected(rows, depth, columns, "silicon", target)
    for policy, seed in (("eager", 0), ("lazy", 0), ("random", 1), ("random", 2)):
        got, trace = launched(text, rows, depth, columns, policy=policy, seed=seed)
        assert np.array_equal(got, want), policy
        assert trace.is_exact
        assert trace.findings == ()


def test_exact_arithmetic_is_its_own_definition_and_says_so(tmp_path: Path) -> None:
    got, trace = launched(compiled(tmp_path), 5, 384, 64, arithmetic="exact")
    assert np.array_equal(got, expected(5, 384, 64, "exact", "sm_90a"))
    assert not trace.is_exact
    assert trace.inexact == ()
    assert "mma.sync" in trace.idealised[0]


def without(text: str, pattern: str) -> str:
    """The PTX with the only statement that matches taken out; the others keep their lines."""
    changed, count = re.subn(pattern, "", text)
    assert count == 1, pattern
    return changed


MUTANTS = {
    "no barrier": (lambda text: without(text, r"bar\.sync\s+0;"), {"race", "read-before-wait"}),
    "no wait": (lambda text: without(text, r"cp\.async\.wait_group 1;"), {"read-before-wait"}),
    "wait for one group less": (lambda text: text.replace("wait_group 1;", "wait_group 2;"), {"read-before-wait"}),
}


@pytest.mark.parametrize("policy", ptx.POLICIES)
@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_missing_wait_or_barrier_is_caught_under_every_policy(mutant: str, policy: str, tmp_path: Path) -> None:
    change, codes = MUTANTS[mutant]
    with pytest.raises(RefsimError) as caught:
        launched(change(compiled(tmp_path)), 3, 512, 64, policy=policy, seed=3)
    assert caught.value.code in codes
    named = re.findall(r"pipeline\.cu:(\d+)", str(caught.value))
    assert len(named) >= 2, "both sides are named"
    assert all(0 < int(line) <= len(SOURCE.read_text().splitlines()) for line in named)


@pytest.mark.parametrize("policy", ptx.POLICIES)
def test_the_wrong_stage_is_caught(policy: str, tmp_path: Path) -> None:
    """The tile after the one that was waited for."""
    text = compiled(
        tmp_path,
        {
            "const u32 stage = base + tile % STAGES * STAGE_BYTES;\n    for (int step": (
                "const u32 stage = base + (tile + 1) % STAGES * STAGE_BYTES;\n    for (int step"
            )
        },
    )
    with pytest.raises(RefsimError) as caught:
        launched(text, 3, 512, 64, policy=policy)
    assert caught.value.code == "read-before-wait"


@pytest.mark.parametrize("policy", ptx.POLICIES)
def test_copying_before_the_barrier_is_caught(policy: str, tmp_path: Path) -> None:
    """Slower warps may still read the stage that the copy overwrites."""
    copying = "if (tile + STAGES - 1 < tiles) start(tile + STAGES - 1);\n"
    text = compiled(tmp_path, {f"__syncthreads();\n    {copying}": f"{copying}    __syncthreads();\n"})
    with pytest.raises(RefsimError) as caught:
        launched(text, 3, 1024, 64, policy=policy, seed=2)
    assert caught.value.code == "race"
    assert "cp.async.cg.shared.global" in str(caught.value)


UNSWIZZLED = {"((chunk ^ (row & 7)) << 4)": "(chunk << 4)"}


@pytest.mark.parametrize(("changes", "ways"), [({}, 1.0), (UNSWIZZLED, 8.0)])
def test_bank_conflicts_are_counted_by_source_line(changes: dict[str, str], ways: float, tmp_path: Path) -> None:
    """Without the swizzle, eight rows of a matrix start in the same bank."""
    got, trace = launched(compiled(tmp_path, changes), 3, 256, 64, arithmetic="exact", checks=ptx.Checks(banks=True))
    assert np.array_equal(got, expected(3, 256, 64, "exact", "sm_90a"))
    assert {use.statement.opcode for use in trace.banks} == {"ldmatrix.sync.aligned.m8n8.x4.shared.b16"}
    assert {use.ways for use in trace.banks} == {ways}
    assert sum(use.accesses for use in trace.banks) == 2 * 8 * 2 * 4, "two tiles of eight steps, A and B, four warps"
    calls = {number for number, line in enumerate(SOURCE.read_text().splitlines(), 1) if "load_matrices(" in line}
    places = [use.statement.location for use in trace.banks if use.statement.location]
    assert places
    assert {place.function for place in places} == {"load_matrices"}
    assert {place.caller.line for place in places if place.caller} <= calls
    rows = np.arange(8) * 256
    assert bank_conflicts(rows + (0 if changes else (np.arange(8) << 4)), 16).total == ways


def test_a_large_grid_runs_in_parts_with_the_same_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = compiled(tmp_path)
    whole, _ = launched(text, 2, 256, 320, arithmetic="exact")
    for name, value in (("WAVE_LANES", 256), ("WAVE_BYTES", 3 * SHARED)):
        with monkeypatch.context() as patch:
            patch.setattr(launch, name, value)
            parts, _ = launched(text, 2, 256, 320, arithmetic="exact", checks=ptx.Checks(banks=True))
        assert np.array_equal(whole, parts)


@pytest.mark.parametrize(
    ("name", "orders"),
    [
        ("sim", ["eager", "lazy", "random"]),
        ("sim:lazy", ["lazy"]),
        ("sim:random", ["random"]),
    ],
)
def test_the_simulated_device_tries_the_policies(name: str, orders: list[str], tmp_path: Path) -> None:
    compiled(tmp_path)
    x, w = problem(2, 256, 64)
    simulated = device.open(name)
    with simulated.launcher(tmp_path / "pipeline.cu") as launcher:
        assert [order.policy for order in launcher.orders("linear")] == orders
        y = launcher.output(128, np.uint16, name="y")
        arguments = [launcher.upload(x, name="x"), launcher.upload(w, name="w"), y, *map(np.int32, (2, 256, 64))]
        launcher.launch("linear", (1,), (128,), arguments, shared_bytes=SHARED)
        assert np.array_equal(launcher.read(y).reshape(2, 64), expected(2, 256, 64, "silicon", "sm_90a"))


def test_a_device_that_is_no_policy_is_unknown() -> None:
    with pytest.raises(RefsimError, match="sim:lazy"):
        device.open("sim:sometimes")
