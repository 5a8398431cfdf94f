"""No barrier, wait or commit of the kernels is spare: take any away and the simulated GPU finds it."""

import pytest

from refsim.testing.barrier_sweep import sweep
from refsim.testing.kernel_files import bundled_kernels, load_kernel_file
from refsim.testing.matrices import Values

linear = load_kernel_file(bundled_kernels("linear_bindings.py"))
fp8 = load_kernel_file(bundled_kernels("linear_fp8_bindings.py"))
LAYERS = [
    pytest.param(linear.LINEAR, linear.Linear, linear.LINEAR_ENTRIES, id="linear"),
    pytest.param(
        fp8.LINEAR_FP8_WEIGHT,
        fp8.LinearFp8Weight,
        fp8.ENTRIES,
        id="linear_fp8_weight",
        marks=pytest.mark.ci("the barriers are those of the layer in bf16, which is swept in every run"),
    ),
]
QUICK = ("linear_n32_s2_blocks_bf16", "linear_fp8_weight_n16_s4_bf16")


@pytest.mark.parametrize(("kernel", "recipe", "entries"), LAYERS)
def test_every_barrier_and_wait_is_needed(kernel, recipe, entries, device, refsim_profile):
    """Five tiles a split fill the ring of stages and use it again; the quick profile sweeps two entries."""
    if device.name != "sim":
        pytest.skip("what a missing barrier does to silicon is luck: the simulated GPU is swept")
    problems = []
    for name, entry in entries.items():
        if entry.shape is None and (refsim_profile != "quick" or name in QUICK):
            blocks = 2 if entry.over_blocks else 1
            depth = 5 * entry.reduction_tile * entry.warps_k * blocks
            x, w = Values("gaussian", 1), Values("gaussian", 2)
            widths = 8, entry.output_tile + 3
            problems += [recipe(2, width, depth, x, w, entry=name, blocks=blocks) for width in widths]
    removals = sweep(kernel, problems, target=device.target)
    assert {removal.entry for removal in removals} == {problem.entry for problem in problems}
    assert all(removal.caught for removal in removals), "\n".join(map(str, removals))
