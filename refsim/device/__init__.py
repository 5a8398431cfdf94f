"""Devices that kernels run on: the simulated GPU and real GPUs, behind one protocol."""

import re
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from refsim.errors import RefsimError, check_named
from refsim.kernel_code import KernelCode
from refsim.kernels import Launcher
from refsim.targets import target_named

if TYPE_CHECKING:
    from refsim.ptx import Arithmetic

__all__ = ["Device", "open"]
__dir__ = partial(sorted, __all__)


class Device(Protocol):
    """A GPU, simulated or real: `launcher` compiles a kernel's code for it and provides the memory of its launches.

    Other libraries may implement this protocol and run functions of their own under the names of the entries.
    """

    @property
    def name(self) -> str: ...

    @property
    def target(self) -> str: ...

    @property
    def is_simulated(self) -> bool:
        """Return whether results come from the model and not from hardware."""

    def describe(self) -> dict[str, str]:
        """Return what a verdict records: device, driver, compiler, flags, hashes of PTX and cubin."""

    def hardware(self) -> dict[str, str]:
        """Return facts of the GPU and its driver for a bring-up report, in reading order; empty for a simulated GPU."""

    def launcher(
        self, code: KernelCode | Path | None, *, count_banks: bool = False, follow_open: bool = False
    ) -> AbstractContextManager[Launcher]:
        """Return a context manager of a launcher for a kernel's code or file; RefsimError no-kernel-file for None.

        count_banks: the launcher's `findings` include bank conflicts, on a device that observes them. follow_open: they
        include what inexact bits reached; request it only from a device that `is_simulated`.
        """

    def loaded(self, text: str, source: str) -> AbstractContextManager[Launcher]:
        """Return a context manager of a launcher for a PTX text; `source` names the text in errors."""

    def probing(self) -> "Device":
        """Return this device for probes of one instruction: a simulated GPU then runs one schedule only."""


def open(
    name: str = "sim", target: str | None = None, *, without: Sequence[str] = (), arithmetic: "Arithmetic" = "silicon"
) -> Device:
    """Return the device called "sim", "cuda" or "cuda:1", for a target such as "sm_90a" (the device's own by default).

    "sim" tries each launch under all policies; "sim:eager", "sim:lazy" and "sim:random" use one policy. "cuda" uses
    PyCUDA if it can be imported, else cuda.bindings, else the driver's library by ctypes. "cuda:pycuda",
    "cuda:bindings", "cuda:libcuda" and "cuda:1:bindings" select one of them. `without` names checks that a simulated
    GPU leaves out, and waivers ("race@kernel.cu:120"); a real GPU makes no checks. `arithmetic` applies to a simulated
    GPU: "silicon", "exact" (matrices are summed exactly) or "known" (results that are inexact, unverified on this
    target or known from a model only are refused).

    Raises RefsimError: an unknown name, check or arithmetic (exit 2); no driver, no GPU or neither library (exit 4).
    open("sim:lazy", "sm_80").target is "sm_80". Source: CUDA Driver API, cuDeviceGet, for the numbers of GPUs.
    """
    if not isinstance(name, str):
        raise RefsimError("unknown-device", f"{name!r:.40} is not a device name", help="sim, sim:lazy, cuda, cuda:1")
    if simulated := re.fullmatch(r"sim(?::(eager|lazy|random))?", name):
        from refsim.device.sim import SimDevice
        from refsim.ptx import Checks

        policy: Any = simulated[1]  # one of SchedulePolicy, or None
        _check_arithmetic(arithmetic)
        _ = Checks(off=without)  # type: ignore[arg-type]  # it refuses a text
        device = SimDevice(name=name, policy=policy, without=tuple(without), arithmetic=arithmetic)
        return device if target is None else replace(device, target=target_named(target).name)
    match = re.fullmatch(r"cuda(?::([0-9]{1,4}))?(?::(pycuda|bindings|libcuda))?", name)
    if not match:
        what = f"no device is called {name!r}"
        raise RefsimError("unknown-device", what, help="sim, sim:lazy, cuda, cuda:1, cuda:bindings")
    _check_arithmetic(arithmetic)
    from refsim.device.cuda import open_device

    opened = open_device(int(match[1] or 0), target, match[2])
    if without:
        raise RefsimError("unknown-check", "a real GPU makes no checks that could be left out", help="--device sim")
    if arithmetic != "silicon":
        what = f"a real GPU has its own arithmetic, not {arithmetic!r}"
        raise RefsimError("unknown-arithmetic", what, help="--device sim")
    return opened


def _check_arithmetic(arithmetic: object) -> None:
    from refsim.ptx import ARITHMETICS

    check_named("arithmetic", arithmetic, ARITHMETICS)
