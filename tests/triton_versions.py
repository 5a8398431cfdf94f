"""What versions of Triton a test holds for, and the reasons that are printed where another one is installed."""

from importlib.metadata import version

import pytest

COPIES_FENCED = (3, 7, 1), "Triton before 3.7.1 omits the proxy fence after cp.async: docs/programs-without-a-gpu.md"
MAPS_SYNCHRONISED = (3, 9), "Triton before 3.9 copies tensor maps without bar.warp.sync: docs/programs-without-a-gpu.md"
BARRIERS_ENDED = (3, 8), "Triton before 3.8 never ends barriers of specialized warps: docs/programs-without-a-gpu.md"
SCALES_OF_ZERO = (
    (3, 9),
    "Triton before 3.9 decodes E8M0 code 0 as zero, and refuses NVFP4 before sm_100: docs/programs-without-a-gpu.md",
)
CLUSTERS = (3, 7), "Triton 3.6 aborts (LinearLayout) at a persistent kernel of two CTAs"
GFX950 = (3, 9), "Triton before 3.9 writes instructions of gfx950 that the interpreter here does not have"
LAYOUTS = (3, 8), "Triton before 3.8 has no cga_layout of tensor memory"
MEMORY = (3, 7), "Triton 3.6 aborts at get_shared_bank_conflicts"


def installed() -> tuple[int, ...]:
    """(3, 9, 0) of 3.9.0."""
    return tuple(int(part) for part in version("triton").split("+")[0].split(".")[:3])


def since(row: tuple[tuple[int, ...], str]) -> None:
    """Skip the test, with the reason, where Triton is older; where none is installed the test says so itself."""
    number, reason = row
    try:
        older = installed() < number
    except ModuleNotFoundError:
        return
    if older:
        pytest.skip(f"{reason} (installed: {version('triton')})")
