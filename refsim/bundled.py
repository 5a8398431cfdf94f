"""Files that come with refsim: kernels, probes, their PTX and recordings, in an installed package or in a checkout."""

from pathlib import Path

from refsim.errors import Kind, RefsimError

PACKAGE = Path(__file__).resolve().parent
PACKAGES = (PACKAGE, PACKAGE.with_name("refsim_run"))
"""The folders of refsim's own code: `refsim run` is a package beside refsim, which imports it by its name alone."""


def bundled(path: str) -> Path:
    """Return the path of a bundled file or folder by its path in the checkout: bundled("gpu/probes/tensor_cores.cu").

    An installed package has it under refsim/_bundled. Raises RefsimError no-such-file if it is in neither place.
    """
    for base in (PACKAGE / "_bundled", PACKAGE.parent):
        if (base / path).exists():
            return base / path
    raise RefsimError("no-such-file", f"{path} is not here", str(PACKAGE), help="reinstall refsim", kind=Kind.MISSING)
