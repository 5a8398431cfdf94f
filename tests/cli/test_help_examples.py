"""Every example of every help page runs as a user types it, in a folder with the files that it names."""

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.cli.help_files import write
from tests.cli.test_help import page
from tests.test_prose import HELPS

NOT_RUN = {
    "refsim verify fp8_quantize --device cuda --profile ci": "needs a GPU",
    "refsim order fp8_gemm_1d2d --kernels gpu/gemm_1d2d.py --product chosen --device cuda --m 1,64,512": "needs a GPU",
    "refsim blame linear --ptxas /opt/cuda-13.5/bin/ptxas": "needs a GPU and this ptxas",
    "refsim blame scale.ptx scale --grid 4 --block 64 --arg x.npy --arg zeros:f32:256 --save-ptx small.ptx": "needs a GPU",
    "refsim blame fp8_quantize --edited mine.cubin": "needs a GPU",
    "refsim bringup --device cuda -o report.html -o report.json": "needs a GPU",
    "refsim bringup --suite numerics --discover": "minutes; tests/bringup runs the suites",
    "refsim bringup --suite conversions --exhaustive fp8": "minutes; tests/bringup runs the suites",
    "refsim bringup --baseline report.json --junit report.xml": "minutes; tests/bringup compares reports",
    "refsim verify linear --cases 100000 --jobs 8 --journal night.sqlite": "hours; tests/campaigns divides shorter ones",
    "refsim explain-diff failures/fp8_quantize-0123456789.json --seconds 60": "searches for a minute; "
    "tests/cli/commands/test_explain_diff.py explains a case",
    "refsim verify": "minutes; CI types README's first command",
    "refsim verify -k 'fp8 and not amax' --as github --junit verify.xml": "minutes; tests/cli/commands/test_verify_in_ci.py "
    "gives the same options for fewer kernels",
}
"""Examples that no test here runs, and why."""
SLOW = (
    "refsim verify",
    "refsim order linear",
    "refsim order served",
    "refsim order numpy",
    "refsim run",
    "refsim new",
    "refsim blame",
    "refsim layout list",
    "refsim numerics",
    "refsim doctor",
    "refsim replay",
    "pytest",
)
CODES = {"diff": {0, 1}, "explain-diff": {0, 1}, "diffpolicy": {0, 1}, "order": {0, 1, 5}, "blame": {0, 5}}
"""Exit codes of commands that compare; `order` of NumPy's product depends on the processor, `blame` on there being a GPU."""
EXAMPLES = re.compile(r"^    (refsim .*|pytest .*)$", re.MULTILINE)


def examples() -> Iterator[str]:
    """Each example as one line, in the order of the pages; those of `new kernel` follow one another."""
    for name in HELPS:
        text = re.sub(r" *\\\n +", " ", page(name))
        yield from EXAMPLES.findall(text)


def lines() -> list[str]:
    return list(dict.fromkeys(examples()))


def marked(line: str) -> object:
    return (
        pytest.param(line, marks=pytest.mark.ci("seconds; other tests run the command"))
        if line.startswith(SLOW)
        else line
    )


def before(line: str, refsim) -> None:
    """What earlier examples of a page have made."""
    for made, needed in {
        "refsim quantize mxfp8 model.safetensors": "dequantize model.mxfp8",
        "refsim quantize nvfp4 model.safetensors": "dequantize model.nvfp4",
        "refsim new kernel scale": "scale_kernel|test_scale",
    }.items():
        if re.search(needed, line):
            assert refsim(*shlex.split(made)[1:]).code == 0


@pytest.mark.parametrize("line", [marked(each) for each in lines() if each not in NOT_RUN])
def test_an_example_runs(line: str, refsim, monkeypatch) -> None:
    write(line)
    before(line, refsim)
    program, *arguments = shlex.split(line)
    if program == "pytest" or arguments[0] in ("run", "order") or "--rerun" in arguments:
        command = [sys.executable, "-m", program, *arguments]
        run = subprocess.run(command, capture_output=True, text=True, check=False)
        code, err = run.returncode, run.stderr + run.stdout
    else:
        found = refsim(*arguments)
        code, err = found.code, found.err
    assert code in CODES.get(arguments[0], {0}), err


def test_every_example_that_does_not_run_is_one_of_a_page() -> None:
    assert set(NOT_RUN) <= set(lines())
    assert len(lines()) - len(NOT_RUN) > 100
