"""The names that a kernel's own test suite imports; every name is loaded when it is first used."""

from typing import TYPE_CHECKING

from refsim.lazy import exports

if TYPE_CHECKING:
    from refsim.kernels import Bounded as Bounded
    from refsim.kernels import Findings as Findings
    from refsim.kernels import Kernel as Kernel
    from refsim.kernels import KernelProduct as KernelProduct
    from refsim.kernels import Launcher as Launcher
    from refsim.kernels import Promise as Promise
    from refsim.kernels import Unordered as Unordered
    from refsim.testing import definitions as definitions
    from refsim.testing import kinds as kinds
    from refsim.testing import laws as laws
    from refsim.testing import matrices as matrices
    from refsim.testing import recipes as recipes
    from refsim.testing import steps as steps
    from refsim.testing import strategies as strategies
    from refsim.testing.assertions import BitsDiffer as BitsDiffer
    from refsim.testing.assertions import PromiseNotKept as PromiseNotKept
    from refsim.testing.assertions import assert_bits_equal as assert_bits_equal
    from refsim.testing.campaign import run_campaign as run_campaign
    from refsim.testing.explained import explain_problem as explain_problem
    from refsim.testing.kernel_files import find_kernels as find_kernels
    from refsim.testing.kernel_files import kernel_named as kernel_named
    from refsim.testing.replay import replay_case as replay_case
    from refsim.testing.verdicts import Verdict as Verdict
else:
    __getattr__, __dir__ = exports(__name__)
