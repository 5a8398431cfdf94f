"""The names that a kernel's own test suite imports; every name is loaded when it is first used."""

from typing import TYPE_CHECKING

__all__ = [
    "BitsDiffer",
    "Bounded",
    "Findings",
    "Kernel",
    "KernelProduct",
    "Launcher",
    "Promise",
    "PromiseNotKept",
    "Unordered",
    "Verdict",
    "assert_bits_equal",
    "definitions",
    "explain_problem",
    "find_kernels",
    "kernel_named",
    "laws",
    "matrices",
    "recipes",
    "replay_case",
    "run_campaign",
    "strategies",
]

if TYPE_CHECKING:
    from refsim.kernels import Bounded, Findings, Kernel, KernelProduct, Launcher, Promise, Unordered
    from refsim.testing import definitions, laws, matrices, recipes, strategies
    from refsim.testing.assertions import BitsDiffer, PromiseNotKept, assert_bits_equal
    from refsim.testing.campaign import run_campaign
    from refsim.testing.explained import explain_problem
    from refsim.testing.kernel_files import find_kernels, kernel_named
    from refsim.testing.replay import replay_case
    from refsim.testing.verdicts import Verdict
else:
    from refsim.lazy import exports

    __getattr__, __dir__ = exports(
        __name__,
        {
            "refsim.kernels": ("Bounded", "Findings", "Kernel", "Launcher", "KernelProduct", "Promise", "Unordered"),
            "refsim.testing.assertions": ("BitsDiffer", "PromiseNotKept", "assert_bits_equal"),
            "refsim.testing.campaign": ("run_campaign",),
            "refsim.testing.explained": ("explain_problem",),
            "refsim.testing.kernel_files": ("find_kernels", "kernel_named"),
            "refsim.testing.replay": ("replay_case",),
            "refsim.testing.verdicts": ("Verdict",),
        },
        ("definitions", "laws", "matrices", "recipes", "strategies"),
    )
    del exports
