"""What a kernel's own test suite imports; every name is loaded when it is first used."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from refsim.kernels import Kernel, Launcher, Promise
    from refsim.testing import laws, recipes, strategies
    from refsim.testing.assertions import assert_bits_equal
    from refsim.testing.campaign import run_campaign
    from refsim.testing.kernel_files import find_kernels, kernel_named
    from refsim.testing.replay import replay_case
    from refsim.testing.verdicts import Verdict

_HOMES = {
    "Kernel": "refsim.kernels",
    "Launcher": "refsim.kernels",
    "Promise": "refsim.kernels",
    "assert_bits_equal": "refsim.testing.assertions",
    "run_campaign": "refsim.testing.campaign",
    "find_kernels": "refsim.testing.kernel_files",
    "kernel_named": "refsim.testing.kernel_files",
    "replay_case": "refsim.testing.replay",
    "Verdict": "refsim.testing.verdicts",
}
_MODULES = ("laws", "recipes", "strategies")
__all__ = [
    "Kernel", "Launcher", "Promise", "Verdict", "assert_bits_equal", "find_kernels", "kernel_named", "laws", "recipes",
    "replay_case", "run_campaign", "strategies",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"{__name__}.{name}")
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
