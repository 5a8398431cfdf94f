"""The declared linear layers on a NumPy stand-in: the wiring of every entry, and what their campaigns catch and suspect."""

from dataclasses import replace

import numpy as np
import pytest

from refsim import oracles
from refsim.errors import RefsimError
from refsim.testing import run_campaign
from refsim.testing.kernel_files import bundled_kernels, load_kernel_file
from refsim.testing.matrices import Values
from refsim.testing.recipes import from_json, to_json
from refsim.testing.runs import examine

linear = load_kernel_file(bundled_kernels("linear_bindings.py"))
fp8 = load_kernel_file(bundled_kernels("linear_fp8_bindings.py"))
KERNELS = [linear.LINEAR, fp8.LINEAR_FP8_WEIGHT]
TABLES = {"linear": linear.LINEAR_ENTRIES, "linear_fp8_weight": fp8.ENTRIES}


def places(rows: int, columns: int) -> tuple[np.ndarray, np.ndarray]:
    """Where the kernel file says that each code of shuffled weights comes from: rows and columns of W."""
    of_row, of_column = np.empty((2, rows, columns), np.int64)
    for n, k, g, a, j in np.ndindex(rows // 16, columns // 16, 8, 4, 8):
        at = 16 * n + 2 * g + a // 2, 16 * k + 8 * (a % 2) + j
        of_row[at] = 16 * n + g + 8 * (j // 4)
        of_column[at] = 16 * k + 2 * a + j % 2 + 8 * (j // 2 % 2)
    return of_row, of_column


def unshuffled(codes: np.ndarray, output: int, reduction: int) -> np.ndarray:
    shape = -(-output // 16) * 16, -(-reduction // 16) * 16
    w = np.empty(shape, np.uint8)
    w[places(*shape)] = codes[: shape[0] * shape[1]].reshape(shape)
    return w[:output, :reduction]


def stand_in(entry, *, mistake=""):
    """One entry in NumPy, from the bytes that it is given; `mistake` names what it gets wrong."""
    is_fp8 = entry.name in fp8.ENTRIES

    def run(launcher, *args):
        pointers = 5 if is_fp8 else 4
        (x, w, *scales, r, y), rest = args[:pointers], list(args[pointers:])
        if entry.shape:
            (batch, output, reduction), stride, groups = entry.shape, entry.shape[1], [128, 128]
        else:
            batch, output, reduction, stride = map(int, rest[:4])
            groups, rest = ([int(group) for group in rest[4:6]], rest[6:]) if is_fp8 else ([], rest[4:])
        blocks = 1
        if entry.over_blocks:
            columns = -(-output // entry.output_tile)
            blocks = rest[0].count // (columns * 16 * entry.output_tile * entry.warps_k)
            assert rest[1].count == columns
        rows = launcher.view(x)[: batch * reduction].reshape(batch, reduction)
        added = None
        if not isinstance(r, np.uint64) and mistake != "no residual":
            added = launcher.view(r).reshape(batch, stride)[:, :output].copy()
        how = {"target": "sm_90a", "reduction": entry.reduction(blocks)}
        if is_fp8:
            codes = launcher.view(w)
            codes = (
                unshuffled(codes, output, reduction)
                if mistake != "not shuffled"
                else in_order(codes, output, reduction)
            )
            grid = -(-output // groups[1]), -(-reduction // groups[0])
            factors = launcher.view(*scales)[: grid[0] * grid[1]].reshape(grid)
            decode = "mirage" if mistake == "trick" else entry.decode
            result = oracles.linear_fp8_weight(
                rows, codes, factors, added, group=(groups[1], groups[0]), decode=decode, **how
            )
        else:
            weights = launcher.view(w)[: output * reduction].reshape(output, reduction)
            result = oracles.linear(rows, weights, added, **how)
        if mistake == "gap":
            output = stride
            result = np.pad(result, ((0, 0), (0, stride - result.shape[1])))
        launcher.view(y).reshape(batch, stride)[:, :output] = result

    return run


def in_order(codes, output, reduction):
    shape = -(-output // 16) * 16, -(-reduction // 16) * 16
    return codes[: shape[0] * shape[1]].reshape(shape)[:output, :reduction]


@pytest.fixture
def layer_device(numpy_device):
    def make(kernel, mistake=""):
        entries = {name: stand_in(entry, mistake=mistake) for name, entry in TABLES[kernel.name].items()}
        return numpy_device(entries, target="sm_90a")

    return make


def small(kernel):
    """Without the entries of one large shape."""
    return replace(kernel, corpus=tuple(problem for problem in kernel.corpus if problem.output < 4096))


LATER = pytest.mark.ci("a stand-in for one layer passes, and a mistake in it is caught, in every run")


@pytest.mark.parametrize(
    "kernel",
    [
        pytest.param(kernel, id=kernel.name, marks=LATER if kernel is fp8.LINEAR_FP8_WEIGHT else ())
        for kernel in KERNELS
    ],
)
def test_campaign_passes_on_a_right_stand_in(kernel, layer_device):
    verdict = run_campaign(small(kernel), layer_device(kernel), profile="quick")
    assert verdict.status == "pass", str(verdict)
    assert verdict.cases == len(small(kernel).corpus) + 25


@pytest.mark.parametrize(
    ("kernel", "mistake", "suspect"),
    [
        (KERNELS[0], "no residual", "where C enters: C is left out, input r"),
        pytest.param(KERNELS[1], "trick", "format: weights are read with zero, subnormal and NaN codes", marks=LATER),
        pytest.param(KERNELS[1], "not shuffled", "shuffled weights read as if they were in order", marks=LATER),
        pytest.param(KERNELS[1], "no residual", "", marks=LATER),
        pytest.param(KERNELS[0], "gap", "", marks=LATER),
    ],
)
def test_campaign_catches_and_suspects(kernel, mistake, suspect, layer_device):
    verdict = run_campaign(replace(kernel, corpus=()), layer_device(kernel, mistake), profile="quick")
    assert verdict.status == "fail"
    assert not suspect or f"likely cause: {suspect}" in verdict.finding


def test_every_entry_of_the_files_is_in_the_table():
    for kernel in KERNELS:
        source = kernel.file.read_text("utf-8")
        assert len(kernel.entries) == sum(line.startswith(("LINEAR(", "LINEAR_")) for line in source.splitlines())
        assert {problem.entry for problem in kernel.corpus} == set(kernel.entries)


def test_shared_memory_and_threads_are_what_the_file_says():
    n64 = linear.LINEAR_ENTRIES["linear_n64_s1"]
    assert (n64.threads, n64.shared_bytes) == (128, 66048)
    assert linear.LINEAR_ENTRIES["linear_n64_blocks"].shared_bytes == 30720
    assert linear.LINEAR_ENTRIES["linear_n32_s8"].reduction().splits == 8
    assert fp8.ENTRIES["linear_fp8_weight_n32_s2_blocks_bf16"].reduction(3).splits == 6


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
def test_corpus_travels_as_json(kernel):
    assert all(from_json(kernel.recipe, to_json(problem)) == problem for problem in kernel.corpus)


def test_every_code_but_nan_is_a_weight_of_the_corpus():
    problem = next(problem for problem in fp8.LINEAR_FP8_WEIGHT.corpus if problem.w.patches)
    codes = problem.w.codes("e4m3", problem.output, problem.reduction)
    assert sorted(codes.ravel().tolist()) == sorted([0, 0, *(code for code in range(256) if code % 128 != 127)])


def test_corpus_shows_the_trick(layer_device):
    """One entry with the wrong decoder fails on the problem of zero weights alone."""
    problem = next(each for each in fp8.LINEAR_FP8_WEIGHT.corpus if each.w == fp8.ZEROS)
    finding = examine(fp8.LINEAR_FP8_WEIGHT, problem, layer_device(fp8.LINEAR_FP8_WEIGHT, "trick")).finding
    assert "pattern every element differs" in finding.text
    assert "every wrong element is 0x4000" in finding.text


@pytest.mark.parametrize(
    "make",
    [
        lambda: linear.Linear(0, 1, 1),
        lambda: linear.Linear(17, 1, 1),
        lambda: linear.Linear(1, 1, 1, entry="linear_n64"),
        lambda: linear.Linear(1, 1, 1, blocks=2),
        lambda: linear.Linear(2, 4096, 4096, entry="linear_1x4096x4096"),
        lambda: linear.Linear(1, 4096, 4096, entry="linear_1x4096x4096", place=linear.Placement(x=1)),
        lambda: linear.Linear(1, 1, 1, place=linear.Placement(in_place=True)),
        lambda: linear.Placement(gap=-1),
        lambda: fp8.LinearFp8Weight(1, 1, 1, wb_k=24),
        lambda: fp8.LinearFp8Weight(1, 1, 1, wb_n=0),
        lambda: fp8.LinearFp8Weight(1, 1, 1, padding=256),
        lambda: fp8.LinearFp8Weight(1, 4096, 4096, wb_k=64, entry="linear_fp8_weight_1x4096x4096"),
        lambda: Values("gausian"),
        lambda: Values(patches=((-1, 0),)),
    ],
)
def test_wrong_problem_is_refused(make):
    with pytest.raises(RefsimError):
        make()
