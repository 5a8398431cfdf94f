"""Compile every kernel and probe for every target and keep the PTX under gpu/ptx: run after one or the compiler changes.

python gpu/refresh_ptx.py            all of them
python gpu/refresh_ptx.py NAME ...   only gpu/kernels/NAME.cu or gpu/probes/NAME.cu
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from refsim.bringup.layouts import PROBES, matrix_part
from refsim.device.compile import TARGETS, bundled_text, compile_ptx
from refsim.errors import RefsimError

GPU = Path(__file__).resolve().parent
MARK = "// Targets: "


RECORDED = ("special_functions",)
"""Probes that run only where a recording is made; their recorder compiles them there."""


def sources() -> list[Path]:
    """Every file that is bundled as PTX."""
    probes = [path for path in sorted((GPU / "probes").glob("*.cu")) if path.stem not in RECORDED]
    return [*sorted((GPU / "kernels").glob("*.cu")), *probes]


def targets_of(source: Path) -> list[str]:
    """The targets that a file is for: those that a line `// Targets: sm_90a` among its first comments names, else every one."""
    for line in source.read_text("utf-8").splitlines():
        if not line.startswith("//"):
            break
        if line.startswith(MARK):
            return line.removeprefix(MARK).split()
    return [row.name for row in TARGETS]


@contextmanager
def as_compiled(source: Path) -> Iterator[Path]:
    """The file that is compiled: of the probe of layouts the part that a bring-up runs."""
    if source == PROBES:
        with matrix_part() as part:
            yield part
    else:
        yield source


def refresh(source: Path, target: str) -> Path:
    """Write gpu/ptx/<stem>.<target>.ptx and return its path; an unchanged file is left alone."""
    with as_compiled(source) as file:
        compiled = compile_ptx(file, target)
    if compiled.origin != "nvrtc":
        raise RefsimError(
            "compiler-missing", "the bundled PTX can only be refreshed by NVRTC", help="pip install 'refsim[sim]'"
        )
    path = GPU / "ptx" / f"{source.stem}.{target}.ptx"
    content = bundled_text(compiled).encode()
    if not path.is_file() or path.read_bytes() != content:
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)
        print(f"{path.relative_to(GPU.parent)}  {len(content)} B  {compiled.compiler}")
    return path


def main(names: list[str]) -> None:
    for source in sources():
        if not names or source.stem in names:
            for target in targets_of(source):
                refresh(source, target)


if __name__ == "__main__":
    main(sys.argv[1:])
