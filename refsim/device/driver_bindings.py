"""The driver through cuda.bindings: no PyCUDA is needed."""

import importlib
from importlib.metadata import version
from types import ModuleType
from typing import Any

from refsim.device.driver import LaunchConfig, no_driver
from refsim.device.driver_direct import DirectDriver, open_direct
from refsim.errors import missing_extra


class _Calls:
    """The calls of cuda.bindings.driver, and the launch configuration in its types."""

    def __init__(self, driver: ModuleType) -> None:
        self.driver = driver

    def __getattr__(self, name: str) -> Any:
        return getattr(self.driver, name)

    def config(self, config: LaunchConfig) -> Any:
        """Return a launch configuration as a CUlaunchConfig."""
        made = self.driver.CUlaunchConfig()
        made.gridDimX, made.gridDimY, made.gridDimZ = config.grid
        made.blockDimX, made.blockDimY, made.blockDimZ = config.block
        made.sharedMemBytes = config.shared_bytes
        attributes = []
        for number, content in config.attributes:
            value = self.driver.CUlaunchAttributeValue()
            value.pad = content.ljust(len(value.pad), b"\0")
            attribute = self.driver.CUlaunchAttribute()
            attribute.id, attribute.value = self.driver.CUlaunchAttributeID(number), value
            attributes.append(attribute)
        made.attrs, made.numAttrs = attributes, len(attributes)
        return made


def open_bindings(index: int) -> DirectDriver:
    """Open GPU `index` through cuda.bindings; RefsimError (exit 4) names the missing library, driver or GPU."""
    try:
        bindings = importlib.import_module("cuda.bindings.driver")
    except ImportError as fault:
        raise missing_extra(f"cuda.bindings is not installed: {fault}", "pip install 'refsim[gpu]'") from fault
    try:
        return open_direct(_Calls(bindings), f"cuda.bindings {version('cuda-bindings')}", index)
    except RuntimeError as fault:  # raised by its loader without libcuda
        raise no_driver(fault) from fault
