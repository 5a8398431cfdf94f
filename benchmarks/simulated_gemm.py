"""The FP8 GEMM on the simulated Hopper: CPU seconds and memory of one launch, under one policy with the default checks.

    python benchmarks/simulated_gemm.py [--against CHECKOUT] [--only TEXT]

Each row is a process: `run` of the kernel's declaration (arguments, tensor maps, the launch, the result read back), warm, after
its bits were compared with the oracle's once; least of 5, in CPU seconds. "silicon" sums as Hopper's tensor core does,
with numba's loops ("fast") or in NumPy alone; "exact" sums exactly. With `--against` the same rows run in turn with
another checkout's package (a worktree of an older commit, say), and the last column is the ratio. sm_90a.
"""

import launches

SHAPES = ((1, 8, 16), (64, 128, 256), (512, 512, 1024))
HOW = (("exact", True), ("silicon", True), ("silicon", False))
POLICIES = ("eager", "lazy", "random")


def rows() -> dict[str, launches.Row]:
    """What is measured, by name: M, N and K, the arithmetic, whether with numba, the policy."""
    found: dict[str, launches.Row] = {}
    for shape in SHAPES:
        for arithmetic, fast in HOW:
            words = f"{arithmetic}{'' if arithmetic == 'exact' else ', fast' if fast else ', NumPy alone'}"
            for policy in POLICIES if shape == SHAPES[1] and fast else POLICIES[:1]:
                found[f"{'x'.join(map(str, shape))} {words}, {policy}"] = [*shape, arithmetic, fast, policy]
    return found


def of_row(m: int, n: int, k: int, arithmetic: str, fast: bool, policy: str) -> launches.Figures:
    """The figures of a row, in this process."""
    if not fast:
        launches.without_numba()
    from refsim.device.sim import SimDevice
    from refsim.testing.kernel_files import bundled_kernels, load_kernel_file
    from refsim.testing.matrices import Values

    gemm = load_kernel_file(bundled_kernels("gemm_1d2d.py"))
    drawn, entry = (Values("gaussian", 1), Values("gaussian", 2)), gemm.chosen(m, n, k).name
    problem = gemm.Gemm1D2D(m, n, k, *drawn, Values("distinct", 3), Values("distinct", 4), entry=entry)
    return launches.measured(gemm.FP8_GEMM_1D2D, problem, SimDevice(policy=policy, arithmetic=arithmetic))


if __name__ == "__main__":
    launches.tabulated(__file__, __doc__, rows(), of_row)
