"""The smallest kernel in which each check finds its code, and the fix; `refsim explain CODE` and the site show them.

A line that ends in `// wrong` makes the mistake. A line that ends in `// right` replaces it, or was missing. The other lines
belong to both kernels. An example without `block` consists of single lines where a whole kernel would hide the point; the
tests that launch every example put them into a kernel.
"""

import tomllib
from dataclasses import dataclass
from importlib.resources import files

WRONG, RIGHT = "// wrong", "// right"


@dataclass(frozen=True)
class Example:
    """Lines of CUDA with both marks, and the fix in a sentence; `block`: the threads of a whole kernel, 0 for single lines."""

    fix: str
    lines: str
    block: int = 0

    def text(self, mark: str) -> str:
        """Return the kernel with the lines of one mark, WRONG or RIGHT, and without the lines of the other."""
        other = RIGHT if mark == WRONG else WRONG
        return "".join(line for line in self.lines.splitlines(keepends=True) if not line.rstrip().endswith(other))


_WRITTEN = tomllib.loads(files("refsim").joinpath("ptx/findings/examples.toml").read_text("utf-8"))

EXAMPLES = {code: Example(**row) for code, row in _WRITTEN.items()}
"""The example of each finding, by its code; `examples.toml` holds them."""
