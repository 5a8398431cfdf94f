"""What the script asks about: the kernels of the tree, each with the target of its PTX, and the kernel with planted defects."""

from dataclasses import replace
from functools import lru_cache

from conformance.blamed.entries import covering
from conformance.blamed.planted import PLANTED, POLYNOMIAL, polynomial
from refsim.blame import BlameSubject, of_kernel
from refsim.kernels import Kernel
from refsim.ptx import DEFAULT_TARGET
from refsim.testing import find_kernels
from refsim.testing.kernel_files import bundled_kernels

__all__ = ["FILES", "PLANTED", "chosen", "kernels", "planted", "subject_named"]

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


@lru_cache(maxsize=1)
def kernels() -> dict[str, tuple[Kernel, str]]:
    """Every kernel of gpu/ by its name, with the target that its PTX is for."""
    return {
        kernel.name: (kernel, OF_OTHER_CHIPS.get(kernel.name) or own or DEFAULT_TARGET)
        for file, own in FILES.items()
        for kernel in find_kernels([bundled_kernels(file)])
    }


def chosen(name: str, target: str | None) -> tuple[int, ...]:
    """Problems of a kernel's corpus that launch each of its entries."""
    kernel, own = kernels()[name]
    return covering(kernel, target or own)


def subject_named(name: str, target: str | None, problems: int, first: tuple[int, ...]) -> BlameSubject:
    """A kernel for the GPU's target, or where nothing runs for its own: `first` of its corpus, then as many as are asked for."""
    kernel, own = kernels()[name]
    subject = of_kernel(kernel, target or own, problems=problems)
    each_entry = tuple(kernel.corpus[number] for number in first)
    return replace(subject, problems=(*each_entry, *(each for each in subject.problems if each not in each_entry)))


def planted(target: str) -> BlameSubject:
    """The small kernel for that target."""
    return polynomial(POLYNOMIAL.replace("sm_90a", target), target)
