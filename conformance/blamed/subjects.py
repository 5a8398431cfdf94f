"""What the script asks about: the kernels of the tree, each with the target of its PTX, and the kernel with planted defects."""

from collections.abc import Callable, Iterator

from conformance.blamed.planted import PLANTED, POLYNOMIAL, polynomial
from refsim.blame import BlameSubject, of_kernel
from refsim.ptx import DEFAULT_TARGET
from refsim.testing import find_kernels
from refsim.testing.kernel_files import bundled_kernels

__all__ = ["PLANTED", "planted", "subjects"]

FILES = {
    "bindings.py": "",
    "group_quantize_bindings.py": "",
    "linear_bindings.py": "",
    "linear_fp8_bindings.py": "",
    "attention.py": "",
    "block_scale.py": "",
    "block_scaled_matmul.py": "",
    "block_scaled_matmul_sm100.py": "sm_100a",
    "gemm_1d2d.py": "",
    "gemm_1d2d_experts.py": "",
    "gemm_1d2d_splits.py": "",
    "row_functions.py": "",
}
"""Files of gpu/ that declare kernels, and the target of one that has no PTX for sm_90a."""
OF_OTHER_CHIPS = {"block_scaled_matmul_sm120": "sm_120a"}


def subjects(target: str | None, problems: int) -> Iterator[tuple[str, Callable[[], BlameSubject]]]:
    """Every kernel by its name, made when it is asked for: for the GPU's target, or where nothing runs for its own."""
    for file, own in FILES.items():
        for kernel in find_kernels([bundled_kernels(file)]):
            chosen = target or OF_OTHER_CHIPS.get(kernel.name) or own or DEFAULT_TARGET
            yield kernel.name, lambda kernel=kernel, chosen=chosen: of_kernel(kernel, chosen, problems=problems)  # type: ignore[misc]


def planted(target: str) -> BlameSubject:
    """The small kernel for that target."""
    return polynomial(POLYNOMIAL.replace("sm_90a", target), target)
