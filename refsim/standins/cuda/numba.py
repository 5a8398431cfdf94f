"""numba-cuda looks for the driver's library before it calls any function; the stand-ins need no library."""

from types import ModuleType

from refsim.errors import RefsimError


def take_place(module: ModuleType) -> None:
    """Mark the driver in numba.cuda.cudadrv.driver as available; numba's own calls a library, and says what to install."""
    own = None
    if not getattr(module, "USE_NV_BINDING", True):
        what = "this numba.cuda calls the driver's library, which is not simulated"
        own = str(RefsimError("missing-extra", what, help="pip install numba-cuda, which is simulated"))
    module.driver.is_initialized, module.driver.initialization_error = own is not None, own
