"""The device that a command runs on, and the packages that it needs."""

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from refsim.cli import console
from refsim.cli.names import SM, Name
from refsim.cli.options import Options, option
from refsim.errors import Kind, RefsimError, missing_extra

if TYPE_CHECKING:
    from refsim.device import Device
    from refsim.ptx import Arithmetic


def without_field() -> Any:
    """Return the field of --without."""
    return option(
        "Turn off a check of the simulated GPU, or waive its finding at one line: race@kernel.cu:120. "
        "`refsim ptx coverage --checks` lists all checks.",
        metavar="NAME[@FILE:LINE]",
        type=Name("check", "refsim.ptx:CHECKS", by="name", row="refsim.ptx.findings.table:check_name"),
    )


def arithmetic_field() -> Any:
    """Return the field of --arithmetic."""
    return option(
        "Arithmetic of the simulated GPU. `silicon`: the bits of the target's hardware, from records or a model. "
        "`known`: the same, but refuse instructions whose bits are not recorded or specified. `exact`: exact sums in "
        "matrix products, which is faster.",
        metavar="MODE",
        default="silicon",
    )


class NamedDevice(Options):
    """The device of a command."""

    device_name: str = option(
        "sim, cuda, cuda:1 or cuda:bindings; auto uses a real GPU if there is one, or else the simulated GPU.",
        "--device",
        default="auto",
    )


class ChosenDevice(NamedDevice):
    """The device of a command, and its architecture."""

    target: str | None = option("Architecture, such as sm_90a (default: the device's).", type=SM)

    def settings(self) -> dict[str, Any]:
        """Return what only a simulated GPU can be told: checks to skip, and its arithmetic."""
        return {}

    def opened(self) -> "Device":
        """Return the device of that name.

        "auto" takes a real GPU, or else the simulated GPU, and reports why a driver finds no GPU. A real GPU refuses
        checks to skip and other modes than silicon.
        """
        from refsim import device

        more = self.settings()
        if self.device_name != "auto":
            return device.open(self.device_name, self.target, **more)
        try:
            return device.open("cuda", self.target, **more)
        except RefsimError as error:
            if error.kind is not Kind.MISSING:
                raise
            if error.code != "no-cuda-driver":  # most machines have none: the answer names the device
                console.tell(f"simulated GPU: {error.what}")
            return device.open("sim", self.target, **more)

    def name_of(self, device: "Device") -> str:
        """Return the name by which a worker opens that device."""
        return self.device_name if self.device_name != "auto" else "sim" if device.is_simulated else "cuda"


class CheckedDevice(ChosenDevice):
    """The device of a command that verifies, and the checks and arithmetic of a simulated GPU."""

    without: tuple[str, ...] = without_field()
    arithmetic: "Arithmetic" = arithmetic_field()

    def settings(self) -> dict[str, Any]:
        """Return the checks to skip, and the arithmetic."""
        return {"without": self.without, "arithmetic": self.arithmetic}


def need(extra: str, *modules: str) -> None:
    """Raise RefsimError (exit 4) with the pip command unless the modules of an extra are installed."""
    for module in modules:
        if find_spec(module) is None:
            raise missing_extra(
                f"this command needs {module}, which is not installed", f"pip install 'refsim[{extra}]'"
            )
