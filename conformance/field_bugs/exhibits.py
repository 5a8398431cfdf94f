"""The right twins of gpu/exhibits: each exhibit without its defect, by the edits that `bugs/` names."""

from dataclasses import replace
from pathlib import Path

from refsim.testing.kernel_files import load_kernel_file

FOLDER = Path(__file__).parent
EXHIBITS = FOLDER.parents[1] / "gpu" / "exhibits"
catalogue = load_kernel_file(FOLDER / "catalogue.py")
declared = {kernel.name: kernel for kernel in load_kernel_file(EXHIBITS / "bindings.py").KERNELS}

KERNELS = tuple(
    replace(declared[bug.id], name=f"{bug.id}.right", file=None, source=catalogue.right_text(bug), include=(EXHIBITS,))
    for bug in catalogue.read_bugs()
    if bug.edits
)
