"""numba-cuda looks for the driver's library before it calls anything: its functions here need none."""

from types import ModuleType


def take_place(module: ModuleType) -> None:
    """Tell numba.cuda.cudadrv.driver, just imported, that there is a driver."""
    module.driver.is_initialized, module.driver.initialization_error = False, None
