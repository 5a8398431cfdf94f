"""The kernels of the suite: right ones with what they compute, wrong ones with the edge that they lack."""

from pathlib import Path

from refsim.testing.kernel_files import load_kernel_file

FOLDER = Path(__file__).parent
suite = load_kernel_file(FOLDER / "suite.py")
RIGHT = load_kernel_file(FOLDER / "right.py").RIGHT
RIGHT_BY_NAME = {kernel.name: kernel for kernel in RIGHT}
WRONG = load_kernel_file(FOLDER / "wrong.py").WRONG
