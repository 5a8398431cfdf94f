"""Block-scaled products on the simulated sm_100: CPU seconds and memory of one launch, under one policy with the default checks.

    python benchmarks/simulated_block_scaled.py [--against CHECKOUT] [--only TEXT]

Rows are measured as those of simulated_gemm.py: 128 x 128 x 512 of each of four formats, gaussian codes, scales near one and all
different, by tensor maps, tcgen05.cp, tcgen05.mma and tensor memory (gpu/kernels/block_scaled_matmul_sm100.cu). sm_100a.
"""

import launches

SHAPE = (128, 128, 512)
FORMATS = ("mxfp8", "mxfp6_e3m2", "mxfp4", "nvfp4")
HOW = (("exact", True), ("silicon", True), ("silicon", False))
FILLS = ("near", "distinct")
POLICIES = ("eager", "lazy", "random")


def rows() -> dict[str, launches.Row]:
    """What is measured, by name: the format, the scales, the arithmetic, whether with numba, the policy."""
    found: dict[str, launches.Row] = {}
    for format in FORMATS:
        for arithmetic, fast in HOW:
            words = f"{arithmetic}{'' if arithmetic == 'exact' else ', fast' if fast else ', NumPy alone'}"
            for fill in FILLS if fast else FILLS[:1]:
                for policy in POLICIES if format == "mxfp8" and fast and fill == "near" else POLICIES[:1]:
                    found[f"{format}, scales {fill}, {words}, {policy}"] = [format, fill, arithmetic, fast, policy]
    return found


def of_row(format: str, fill: str, arithmetic: str, fast: bool, policy: str) -> launches.Figures:
    """The figures of a row, in this process."""
    if not fast:
        launches.without_numba()
    from refsim.device.sim import SimDevice
    from refsim.testing.kernel_files import bundled_kernels, load_kernel_file
    from refsim.testing.matrices import Values

    kernels = load_kernel_file(bundled_kernels("block_scaled_matmul_sm100.py"))
    drawn = Values("gaussian", 1), Values("gaussian", 2)
    scales = kernels.matmul.Scales(fill, 3), kernels.matmul.Scales(fill, 4)
    problem = kernels.BlockScaledSm100(*SHAPE, f"block_scaled_matmul_sm100_{format}", *drawn, *scales)
    simulated = SimDevice("sm_100a", policy=policy, arithmetic=arithmetic)
    return launches.measured(kernels.BLOCK_SCALED_SM100, problem, simulated)


if __name__ == "__main__":
    launches.tabulated(__file__, __doc__, rows(), of_row)
