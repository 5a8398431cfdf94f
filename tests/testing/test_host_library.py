"""Host functions that make a kernel's parameters, compiled by nvcc and run without a GPU."""

import ctypes
import subprocess
import sys
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from tempfile import mkdtemp

import numpy as np
import pytest
from hypothesis import strategies as st

from refsim import device
from refsim.device.toolchain import find_nvcc
from refsim.errors import RefsimError
from refsim.testing import Kernel, laws
from refsim.testing.adapters import HostLibrary

SOURCE = Path(__file__).with_name("host_library.cu")
SIZE, OPT_IN = 192, 227 << 10


@lru_cache(maxsize=1)
def built() -> tuple[Path, str]:
    nvcc = find_nvcc()
    if nvcc is None:
        pytest.skip("nvcc is not here: it builds the host library")
    folder = Path(mkdtemp())
    library, ptx = folder / "libhost.so", folder / "copy.ptx"
    for flags in (["-shared", "-Xcompiler", "-fPIC", "-cudart", "none", "-o", library], ["-ptx", "-o", ptx]):
        ran = subprocess.run(
            [nvcc, "-gencode", "arch=compute_90,code=compute_90", *flags, SOURCE],
            capture_output=True,
            text=True,
            check=False,
        )
        if ran.returncode:
            pytest.skip(f"nvcc cannot build a host library here: {ran.stderr[-300:]}")
    return library, ptx.read_text()


@dataclass(frozen=True)
class Copy:
    rows: int = 16


def test_a_kernel_runs_with_the_parameters_that_its_host_code_makes() -> None:
    library, ptx = built()
    host = HostLibrary(library)

    def run(launcher, problem):  # type: ignore[no-untyped-def]
        x = launcher.upload(np.arange(64 * problem.rows, dtype=np.uint16), name="x")
        y = launcher.output(64, np.uint16, name="y")
        launcher.launch("copy", 1, 64, [host.fill(launcher, "make", SIZE, x, y, np.int32(problem.rows))])
        return {"y": launcher.read(y)}

    def oracle(problem):  # type: ignore[no-untyped-def]
        return {"y": (np.arange(512, 576) + problem.rows + 132 + OPT_IN).astype(np.uint16)}

    kernel = Kernel(
        "copy", oracle, st.builds(Copy, st.sampled_from([16, 40])), run, {"y": ""}, Copy, ptx=ptx, host=host
    )
    simulated = device.open("sim")
    laws.agrees_with_oracle(kernel, Copy(), simulated)
    laws.agrees_with_oracle(kernel, Copy(40), simulated)
    assert simulated.describe()["host"].startswith("libhost.so ")


def test_the_call_that_older_headers_have_is_answered_and_an_unknown_one_is_named() -> None:
    library, ptx = built()
    with device.open("sim").loaded(ptx, "copy") as launcher:
        assert HostLibrary(library).fill(launcher, "asks", 8).raw != bytes(8)
        unknown = library.with_name("libunknown.so")
        source = 'extern "C" int cuCtxGetId(void*, void*); extern "C" int ask(void* p) { return cuCtxGetId(p, p); }'
        unknown.with_suffix(".cpp").write_text(source)
        nvcc = str(find_nvcc())
        subprocess.run(
            [nvcc, "-shared", "-Xcompiler", "-fPIC", "-cudart", "none", "-o", unknown, unknown.with_suffix(".cpp")],
            check=True,
        )
        with pytest.raises(RefsimError, match="cuCtxGetId") as caught:
            HostLibrary(unknown).fill(launcher, "ask", 8)
    assert "cudaGetDriverEntryPointByVersion, cudaGetErrorName," in caught.value.help
    assert "cudaMalloc" not in caught.value.help


def test_a_crash_of_a_host_function_shows_the_call() -> None:
    library, ptx = built()
    script = f"""
from refsim import device
from refsim.testing.adapters import HostLibrary
with device.open("sim").loaded({ptx!r}, "copy") as launcher:
    HostLibrary({str(library)!r}).fill(launcher, "crashes", 8)
"""
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert ran.returncode < 0
    assert 'File "<string>", line 5' in ran.stderr


def test_what_goes_wrong_in_a_host_function_is_one_clear_error(tmp_path: Path) -> None:
    library, ptx = built()
    host = HostLibrary(library)
    with device.open("sim").loaded(ptx, "copy") as launcher:
        x = launcher.upload(np.zeros(64 * 16, np.uint16), name="x")
        y = launcher.output(64, np.uint16, name="y")
        with pytest.raises(RefsimError, match="it called cudaMalloc, which needs a GPU"):
            host.fill(launcher, "allocates", 8)
        assert host.fill(launcher, "nothing", 4, status=False).raw == b"\7\0\0\0"
        said = host.fill(launcher, "says", 8, np.int32(0)).raw
        assert ctypes.string_at(int.from_bytes(said, "little")) == b"no error"
        with pytest.raises(
            RefsimError, match=rf"it wrote {SIZE - 44} bytes or more, and size is 8\n.*make of libhost.so"
        ):
            host.fill(launcher, "make", 8, x, y, np.int32(16))
        for code, call in (
            ("bad-tensor-map", lambda: host.fill(launcher, "make", SIZE, x, y, np.int32(17))),  # beyond the buffer
            ("bad-host-library", lambda: host.fill(launcher, "fails", 4)),
            ("bad-host-library", lambda: host.fill(launcher, "none", 4)),
            ("bad-host-library", lambda: host.fill(launcher, "allocates", 8, status=False)),
            ("bad-argument", lambda: host.fill(launcher, "make", 0, x, y)),
            ("bad-argument", lambda: host.fill(launcher, "make", SIZE, 5)),
            ("bad-host-library", lambda: HostLibrary(tmp_path / "none.so").fill(launcher, "make", 4)),
        ):
            with pytest.raises(RefsimError) as caught:
                call()
            assert caught.value.code == code
    with pytest.raises(RefsimError, match="HostLibrary"):
        Kernel("k", len, None, len, {"y": ""}, Copy, ptx=ptx, host="libhost.so")  # type: ignore[arg-type]
