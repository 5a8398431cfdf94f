"""What a kernel that fails printed: in the error, in the verdict, in a program run on the simulated GPU."""

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from refsim import device, ptx
from refsim.errors import MOST_PRINTED, RefsimError
from refsim.kernels import Kernel
from refsim.testing.runs import run_problem
from refsim.testing.verdicts import FAIL, PASS

HEAD = """.version 9.0
.target sm_80
.address_size 64
.extern .func (.param .b32 r) vprintf(.param .b64 f, .param .b64 b);
.global .align 1 .b8 words[] = {37, 100, 32, 104, 101, 114, 101, 10, 0};
.visible .entry k(.param .u64 out) {
    .local .align 8 .b8 given[8]; .reg .b64 %o, %f, %b; .reg .b32 %t, %r; .reg .pred %p;
    ld.param.u64 %o, [out]; mov.u32 %t, %tid.x; mul.wide.u32 %b, %t, 4; add.s64 %o, %o, %b;
    st.local.u32 [given], %t; mov.u64 %b, given; cvta.local.u64 %b, %b; mov.u64 %f, words; cvta.global.u64 %f, %f;
    { .param .b64 x; .param .b64 y; .param .b32 z; st.param.b64 [x], %f; st.param.b64 [y], %b;
      call.uni (z), vprintf, (x, y); ld.param.b32 %r, [z]; }
"""
RIGHT, WRONG = "st.global.u32 [%o], %t; ret; }", "add.u32 %t, %t, 1; st.global.u32 [%o], %t; ret; }"
FAULT = "setp.eq.u32 %p, %t, 2; @%p trap; st.global.u32 [%o], %t; ret; }"
LINE = "block (0, 0, 0) thread (3, 0, 0): 3 here"


@dataclass(frozen=True)
class Once:
    """The only test case."""


def declared(path: Path, tail: str) -> Kernel:
    file = path / "speaks.ptx"
    file.write_text(HEAD + tail)

    def launch(launcher, _):
        out = launcher.output(4, np.uint32, name="out")
        launcher.launch("k", 1, 4, [out])
        return {"out": launcher.read(out)}

    return Kernel(
        "speaks", lambda _: {"out": np.arange(4, dtype=np.uint32)}, None, launch, {"out": ""}, recipe=Once, file=file
    )


def test_an_error_has_what_was_printed_before_it() -> None:
    with pytest.raises(RefsimError) as caught:
        ptx.load(HEAD + FAULT).launch("k", 1, 4, [np.zeros(4, np.uint32)])
    assert caught.value.printed[3] == LINE
    assert f"printed: {LINE}" in str(caught.value)
    assert RefsimError.from_json(caught.value.to_json()).printed == caught.value.printed


def test_a_text_has_the_last_lines_and_the_number_of_the_others() -> None:
    with pytest.raises(RefsimError) as caught:
        ptx.load(HEAD + FAULT).launch("k", 1, 32, [np.zeros(32, np.uint32)])
    assert len(caught.value.printed) == 32
    assert f"printed: {32 - MOST_PRINTED} earlier lines" in str(caught.value)
    assert "thread (31, 0, 0): 31 here" in str(caught.value)
    assert "thread (3, 0, 0): 3 here" not in str(caught.value)


@pytest.mark.parametrize(("tail", "status"), [(FAULT, FAIL), (WRONG, FAIL), (RIGHT, PASS)])
def test_a_verdict_that_fails_shows_it(tmp_path: Path, tail: str, status: str) -> None:
    with_what = run_problem(declared(tmp_path, tail), Once(), device.open("sim", "sm_80"))
    assert with_what.status == status
    assert (f"printed: {LINE}" in str(with_what)) == (status == FAIL)


def test_a_program_prints_what_its_kernel_printed_before_a_fault(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import cupy\n"
        f"text = {HEAD + FAULT!r}\n"
        "open('speaks.ptx', 'w').write(text)\n"
        "out = cupy.zeros(4, cupy.uint32)\n"
        "cupy.RawModule(path='speaks.ptx').get_function('k')((1,), (4,), (out,))\n"
        "cupy.cuda.Device().synchronize()\n"
    )
    command = [sys.executable, "-m", "refsim", "run", "--target", "sm_80", str(program)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert ended.returncode != 0
    assert "3 here\n" in ended.stdout
