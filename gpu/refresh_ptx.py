"""Compile every kernel for every target and keep the PTX under gpu/ptx: run after a kernel or the compiler changes.

python gpu/refresh_ptx.py            all kernels
python gpu/refresh_ptx.py NAME ...   only gpu/kernels/NAME.cu
"""

import sys
from pathlib import Path

from refsim.device.compile import TARGETS, bundled_text, compile_ptx
from refsim.errors import RefsimError

GPU = Path(__file__).resolve().parent


def refresh(source: Path, target: str) -> Path:
    """Write gpu/ptx/<stem>.<target>.ptx and return its path; an unchanged file is left alone."""
    compiled = compile_ptx(source, target)
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
    sources = [GPU / "kernels" / f"{name}.cu" for name in names] or sorted((GPU / "kernels").glob("*.cu"))
    for source in sources:
        for target in TARGETS:
            refresh(source, target.name)


if __name__ == "__main__":
    main(sys.argv[1:])
