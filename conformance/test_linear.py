"""The linear layers on a device: every entry, special problems and generated ones; not one bit may differ."""

from dataclasses import replace

import pytest

import refsim.device
from refsim.numerics import profiles
from refsim.ptx.machine.launch_rules import limits_of
from refsim.silicon import launch_replay
from refsim.testing import laws, run_campaign
from refsim.testing.kernel_files import bundled_kernels, load_kernel_file

linear = load_kernel_file(bundled_kernels("linear_bindings.py"))
fp8 = load_kernel_file(bundled_kernels("linear_fp8_bindings.py"))
CASES = {"quick": 1, "ci": 2, "night": 350}  # generated for each entry of any shape, beside the corpus
ELSEWHERE = ("recorded", "published", "definition")
JUDGES = {
    "sm_80": ELSEWHERE,
    "sm_89": ELSEWHERE,
    "sm_90a": ("recorded", "published"),
    "sm_100a": ELSEWHERE,
    "sm_120a": ("recorded", "definition"),
}
"""What the tensor cores and the arithmetic of a target are compared with: nothing of sm_120's is published."""
LAYERS = [
    (linear.LINEAR, linear.linear_problems, linear.LINEAR_ENTRIES),
    (fp8.LINEAR_FP8_WEIGHT, fp8.linear_fp8_weight_problems, fp8.ENTRIES),
]
KERNELS = [pytest.param(kernel, entries, id=kernel.name) for kernel, _, entries in LAYERS]
VARIANTS = [
    pytest.param(kernel, problems, name, id=name)
    for kernel, problems, entries in LAYERS
    for name, entry in entries.items()
    if entry.shape is None
]


@pytest.mark.parametrize(("kernel", "problems", "entry"), VARIANTS)
def test_problems_of_an_entry_agree(kernel, problems, entry, device, refsim_profile, refsim_failures):
    """Tails, one tile, splits without a tile, odd strides and offsets; then what Hypothesis makes of them.

    The quick profile has every fourth shape, others for each entry, ci every second."""
    corpus = tuple(problem for problem in kernel.corpus if problem.entry == entry)
    if refsim_profile == "quick":
        corpus = corpus[list(kernel.entries).index(entry) % 4 :: 4]
    elif refsim_profile == "ci":  # which runs `refsim verify` with all of them
        corpus = corpus[::2]
    variant = replace(kernel, problem=problems((entry,)), corpus=corpus)
    cases = CASES[refsim_profile]
    verdict = run_campaign(variant, device, profile=refsim_profile, cases=cases, failures_dir=refsim_failures)
    assert verdict.status == "pass", str(verdict)
    assert verdict.cases >= len(corpus) + cases


@pytest.mark.night("half a minute each; `refsim verify`, which CI runs first, has the same problems")
@pytest.mark.parametrize(("kernel", "entries"), KERNELS)
def test_entries_of_one_shape_agree(kernel, entries, device, refsim_failures):
    """4096 x 4096."""
    corpus = tuple(problem for problem in kernel.corpus if entries[problem.entry].shape is not None)
    verdict = run_campaign(replace(kernel, corpus=corpus), device, cases=0, failures_dir=refsim_failures)
    assert verdict.status == "pass", str(verdict)
    assert verdict.cases == len(corpus) > 0


@pytest.mark.ci("a launch on each target is in every run, below; this has every entry that the target can launch")
@pytest.mark.parametrize("target", JUDGES)
@pytest.mark.parametrize(("kernel", "entries"), KERNELS)
def test_every_target_agrees_on_the_simulator(kernel, entries, target):
    """The same source for other tensor cores: the oracle takes the target's arithmetic, sm_80 decodes FP8 by integers.

    One or two problems of each entry. An entry that asks for more shared memory than the target has is named; the others run.
    """
    corpus = []
    for name, entry in entries.items():
        of_it = [problem for problem in kernel.corpus if problem.entry == name]
        corpus += of_it[:1] if entry.shape else of_it[1:4:2]
    verdict = run_campaign(replace(kernel, corpus=tuple(corpus)), refsim.device.open("sim", target), cases=0)
    unfit = {name for name, entry in entries.items() if entry.shared_bytes > limits_of(target).opt_in}
    assert set(verdict.unfit) == unfit
    assert verdict.status == ("unsupported" if unfit else "pass"), str(verdict)
    assert verdict.cases == len([problem for problem in corpus if problem.entry not in unfit])
    assert verdict.checks == (*JUDGES[target], "outputs")


@pytest.fixture
def replayed_anew():
    """The model is changed below: nothing may be known of it from another test, and nothing stay.

    tests/conftest.py makes `afresh` do nothing once a test of its folder has run in the process.
    """
    launch_replay.shared.cache_clear()
    yield
    launch_replay.shared.cache_clear()


@pytest.mark.parametrize("target", JUDGES)
def test_fewer_fraction_bits_are_seen_on_every_target(target, monkeypatch, replayed_anew):
    """Kernel and oracle both take F = 20 from the table and agree; 24 or 25 is right."""
    of_entry = (problem for problem in linear.LINEAR.corpus if problem.entry == "linear_n64_s1")
    problem = next(problem for problem in of_entry if problem.x.fill == "gaussian" and problem.reduction > 200)
    variant, simulated = replace(linear.LINEAR, corpus=(problem,)), refsim.device.open("sim", target)
    verdict = run_campaign(variant, simulated, cases=0)
    assert (verdict.status, verdict.silicon.judges) == ("pass", JUDGES[target]), str(verdict)
    key = (profiles.chip(target), "mma.sync", "bf16", "bf16", "f32")
    monkeypatch.setitem(profiles._BY_KEY, key, [replace(row, fraction=20) for row in profiles._BY_KEY[key]])
    launch_replay.shared.cache_clear()
    verdict = run_campaign(variant, simulated, cases=0)
    assert (verdict.status, verdict.differing) == ("fail", 0), str(verdict)
    assert verdict.finding.startswith("[model-differs] the model differs from hardware"), str(verdict)
    assert f"mma.sync.bf16 {target}" in verdict.finding
    judge = "slow second definition" if "definition" in JUDGES[target] else "recorded results of an H200"
    assert judge in verdict.finding


@pytest.mark.parametrize("entry", ["linear_n64_blocks", "linear_n32_s2_blocks_bf16"])
def test_second_run_writes_the_same_bits(entry, device):
    """The block that adds the splits is the last one to arrive, whichever that is."""
    problem = next(problem for problem in linear.LINEAR.corpus if problem.entry == entry and problem.batch > 3)
    laws.deterministic(linear.LINEAR, problem, device)
