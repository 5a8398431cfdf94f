"""Devices that kernels run on: the simulated GPU and real ones, behind one protocol."""

import re
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from refsim.errors import RefsimError
from refsim.kernels import Launcher

__all__ = ["Device", "open"]


class Device(Protocol):
    """A GPU, simulated or real: `launcher` compiles a kernel file for it and gives memory to run it in."""

    @property
    def name(self) -> str: ...

    @property
    def target(self) -> str: ...

    def describe(self) -> dict[str, str]:
        """What a verdict must hold: device, driver, compiler, flags, hashes of PTX and cubin."""

    def launcher(self, kernel_file: Path) -> AbstractContextManager[Launcher]: ...


def open(name: str = "sim", target: str | None = None) -> Device:
    """The device called "sim", "cuda" or "cuda:1", for a target such as "sm_90a" (the device's own by default).

    "sim" tries each launch under all policies; "sim:eager", "sim:lazy" and "sim:random" under one of them. "cuda" goes
    through PyCUDA where it can be imported, else through cuda.bindings; "cuda:pycuda", "cuda:bindings" and
    "cuda:1:bindings" through the one named.

    Raises RefsimError: an unknown name (exit 2); no driver, no GPU or neither library (exit 4).
    """
    if simulated := re.fullmatch(r"sim(?::(eager|lazy|random))?", name):
        from refsim.device.compile import target_named
        from refsim.device.sim import SimDevice

        device = SimDevice(name=name, policy=simulated[1])
        return replace(device, target=target_named(target).name) if target else device
    match = re.fullmatch(r"cuda(?::(\d+))?(?::(pycuda|bindings))?", name)
    if not match:
        raise RefsimError(
            "unknown-device", f"no device is called {name!r}", help="sim, sim:lazy, cuda, cuda:1, cuda:bindings"
        )
    from refsim.device.cuda import open_device

    return open_device(int(match[1] or 0), target, match[2])
