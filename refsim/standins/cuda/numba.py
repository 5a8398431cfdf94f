"""numba-cuda looks for the driver's library before it calls any function; the stand-ins need no library."""

from types import ModuleType


def take_place(module: ModuleType) -> None:
    """Mark the driver in numba.cuda.cudadrv.driver, just imported, as available."""
    module.driver.is_initialized, module.driver.initialization_error = False, None
