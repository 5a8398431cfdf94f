"""The linear layers on a device: every entry, special problems and generated ones; not one bit may differ."""

from dataclasses import replace

import pytest

import refsim.device
from refsim.ptx.machine.limits import limits_of
from refsim.testing import laws, run_campaign
from refsim.testing.kernel_files import bundled_kernels, load_kernel_file

linear = load_kernel_file(bundled_kernels("linear_bindings.py"))
fp8 = load_kernel_file(bundled_kernels("linear_fp8_bindings.py"))
CASES = {"quick": 1, "ci": 2, "night": 350}  # generated for each entry of any shape, beside the corpus
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


@pytest.mark.sampled(3, "layer and target each in CI, not every pair")
@pytest.mark.ci("the kernels are verified on the simulator's own target in every run")
@pytest.mark.parametrize("target", ["sm_80", "sm_89", "sm_100a"])
@pytest.mark.parametrize(("kernel", "entries"), KERNELS)
def test_other_targets_agree_on_the_simulator(kernel, entries, target):
    """The same source for other tensor cores: the oracle takes the target's arithmetic, sm_80 decodes FP8 by integers.
    An entry that asks for more shared memory than the target has is refused."""
    general = [problem for problem in kernel.corpus if entries[problem.entry].shape is None]
    fits = {name: entry.shared_bytes <= limits_of(target).opt_in for name, entry in entries.items()}
    simulated = refsim.device.open("sim", target)
    corpus = tuple(problem for problem in general if fits[problem.entry])[::4]
    verdict = run_campaign(replace(kernel, corpus=corpus), simulated, cases=0)
    assert verdict.status == "pass", str(verdict)
    for name in {problem.entry for problem in general if not fits[problem.entry]}:
        problem = next(problem for problem in general if problem.entry == name)
        with pytest.raises(refsim.RefsimError, match="launch-limit"):
            run_campaign(replace(kernel, corpus=(problem,)), simulated, cases=0)


@pytest.mark.parametrize("entry", ["linear_n64_blocks", "linear_n32_s2_blocks_bf16"])
def test_second_run_writes_the_same_bits(entry, device):
    """The block that adds the splits is the last one to arrive, whichever that is."""
    problem = next(problem for problem in linear.LINEAR.corpus if problem.entry == entry and problem.batch > 3)
    laws.deterministic(linear.LINEAR, problem, device)
