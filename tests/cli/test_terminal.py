"""The program as its own process: terminals, closed pipes, and what starting it costs."""

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAM = [sys.executable, "-m", "refsim"]


OF_A_PIPE = pytest.mark.ci("an answer, a help page and an error are written to a closed pipe in every run")


def environment(**changes):
    kept = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "NO_COLOR", "FORCE_COLOR")}
    return {**kept, "TERM": "xterm-256color", "PYTHONPATH": str(ROOT), **changes}


def in_terminal(arguments, columns, **changes):
    """Standard output of a run on a terminal of that width."""
    reading, writing = pty.openpty()
    fcntl.ioctl(writing, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    run = subprocess.Popen([*PROGRAM, *arguments], stdout=writing, stderr=subprocess.PIPE, env=environment(**changes))
    os.close(writing)
    chunks = []
    while True:
        try:
            chunk = os.read(reading, 1 << 16)
        except OSError:  # Linux says EIO when the last writer has closed the terminal
            break
        if not chunk:
            break
        chunks.append(chunk)
    os.close(reading)
    run.communicate(timeout=30)
    return run.returncode, b"".join(chunks).decode().replace("\r\n", "\n")


def test_terminal_has_colour_and_its_width():
    code, out = in_terminal(["decode", "-t", "e4m3", "0x7e", "0xff"], 60)
    assert code == 0
    assert "\x1b[1m0x7e\x1b[0m" in out
    plain = out.replace("\x1b[1m", "").replace("\x1b[2m", "").replace("\x1b[0m", "")
    assert "\x1b" not in plain
    assert max(map(len, plain.splitlines())) <= 60
    assert "nearest-even: [432, 464]" in plain


@pytest.mark.parametrize("changes", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_colour_is_left_out_where_it_is_unwelcome(changes):
    code, out = in_terminal(["decode", "-t", "e4m3", "0x7e"], 120, **changes)
    assert code == 0
    assert out.startswith("0x7e  0 1111 110   448 = 1.110b x 2^8   largest finite")
    assert "\x1b" not in out


@pytest.mark.parametrize(
    ("arguments", "colour"),
    [
        pytest.param(
            "layout show wgmma.m64n128k32.e4m3.d",
            "\x1b[34m   0:0",
            marks=pytest.mark.ci("a picture is shown in every run"),
        ),
        ("swizzle 128B", "\x1b[36m"),
    ],
)
def test_pictures_are_coloured_and_never_wrap(arguments, colour, refsim_profile):
    for columns in (33,) if refsim_profile == "quick" else (60, 33):
        code, out = in_terminal(arguments.split(), columns)
        assert code == 0
        assert colour in out or columns == 33
        plain = re.sub(r"\x1b\[\d+m", "", out)
        assert "\x1b" not in plain
        assert max(map(len, plain.splitlines())) <= columns
        assert len(plain.splitlines()) in (9, 65)
        code, bare = in_terminal(arguments.split(), columns, NO_COLOR="1")
        assert (code, bare) == (0, plain)


def test_pipe_has_neither_colour_nor_a_width():
    run = subprocess.run(
        [*PROGRAM, "table", "e4m3"], capture_output=True, text=True, env=environment(), check=True, timeout=30
    )
    assert "\x1b" not in run.stdout
    assert len(run.stdout.splitlines()) == 17
    assert run.stderr == ""


@pytest.mark.parametrize(
    "arguments",
    [
        "table e4m3 --as json",
        pytest.param("layout show wgmma.m64n128k32.e4m3.d --as svg", marks=OF_A_PIPE),
        pytest.param("layout list", marks=OF_A_PIPE),
        "--help",
        pytest.param("decode --help", marks=OF_A_PIPE),
        "table e4m4",
    ],
)
def test_closed_pipe_is_silent(arguments):
    reading, writing = os.pipe()
    os.close(reading)
    run = subprocess.run(
        [*PROGRAM, *arguments.split()],
        stdout=writing,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
        timeout=30,
        check=False,
    )
    os.close(writing)
    assert run.returncode == (2 if "e4m4" in arguments else 0)
    assert "Broken" not in run.stderr
    assert "Traceback" not in run.stderr


def test_closed_standard_error_does_not_change_the_exit_code():
    reading, writing = os.pipe()
    os.close(reading)
    run = subprocess.run(
        [*PROGRAM, "decode", "-t", "e4m4", "1"],
        stdout=subprocess.PIPE,
        stderr=writing,
        env=environment(),
        timeout=30,
        check=False,
    )
    os.close(writing)
    assert (run.returncode, run.stdout) == (2, b"")


@pytest.mark.parametrize(
    ("closed", "word", "code"),
    [
        (1, "0x7e", 0),
        pytest.param(1, "0x7x", 2, marks=pytest.mark.ci("an answer and an error are closed in every run")),
        (2, "0x7x", 2),
    ],
)
def test_descriptor_that_the_caller_closed_does_not_change_the_exit_code(closed, word, code):
    """`>&-` and `2>&-`: Python has no stream there."""
    run = subprocess.run(
        ["sh", "-c", f'exec "$@" {closed}>&-', "sh", *PROGRAM, "decode", "-t", "e4m3", word],
        capture_output=True,
        text=True,
        env=environment(),
        timeout=30,
        check=False,
    )
    assert run.returncode == code
    assert "internal-error" not in run.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_full_disk_is_an_error_with_a_record():
    with open("/dev/full", "w") as full:
        run = subprocess.run(
            [*PROGRAM, "sources"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(),
            timeout=30,
            check=False,
        )
    assert run.returncode == 2
    assert run.stderr == "[cannot-write] cannot write: no space left on device\n  at: standard output\n"


@pytest.mark.parametrize("arguments", ["--help", "decode --help", "completion bash", "sources ptx"])
def test_start_loads_nothing_heavy(arguments):
    script = (
        "import sys; from refsim.cli import main; code = main(sys.argv[1:]);"
        "print(code, *sorted({name.partition('.')[0] for name in sys.modules}), file=sys.stderr)"
    )
    run = subprocess.run(
        [sys.executable, "-c", script, *arguments.split()],
        capture_output=True,
        text=True,
        env=environment(),
        check=True,
        timeout=30,
    )
    code, *loaded = run.stderr.split()
    assert code == "0"
    assert "click" in loaded
    assert {"numpy", "ml_dtypes", "hypothesis", "pytest"} & set(loaded) == set()


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_the_script_of_a_shell(shell):
    """PATH is empty: printing the script must not need the shell."""
    run = subprocess.run(
        [*PROGRAM, "completion", shell],
        capture_output=True,
        text=True,
        env=environment(PATH=""),
        check=True,
        timeout=30,
    )
    assert f"_REFSIM_COMPLETE={shell}_complete" in run.stdout
    assert run.stderr == ""


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("refsim dec", {"decode"}),
        ("refsim decode -t e5m2", {"e5m2", "e5m2fnuz"}),
        ("refsim table ue", {"ue4m3", "ue5m3"}),
        ("refsim decode --as j", {"json", "jsonl"}),
        ("refsim encode --rounding t", {"toward-zero", "ties-away"}),
        ("refsim encode --overflow s", {"saturate"}),
        ("refsim encode --via torch.float8_e4", {"torch.float8_e4m3fn", "torch.float8_e4m3fnuz"}),
        ("refsim diffpolicy e4m3 t", {"torch", "torchao", "te_reference", "triton", "triton.rtz"}),
        ("refsim sources p", {"ptx"}),
        ("refsim decode --sour", {"--source"}),
    ],
)
def test_completion_knows_the_names(words, found, refsim, monkeypatch):
    monkeypatch.setenv("_REFSIM_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(len(words.split()) - 1))
    run = refsim()
    assert {line.partition(",")[2] for line in run.out.splitlines()} == found


@pytest.mark.parametrize(
    ("shell", "current", "answer"),
    [
        ("bash", "1", "plain,verify\n"),
        ("zsh", "1", "plain\nverify\nCompare compiled kernels with their oracles bit for bit.\n"),
        ("fish", "ver", "plain,verify\tCompare compiled kernels with their oracles bit for bit.\n"),
    ],
)
def test_completion_answers_a_shell_and_says_nothing_else(shell, current, answer, refsim, monkeypatch):
    monkeypatch.setenv("_REFSIM_COMPLETE", f"{shell}_complete")
    monkeypatch.setenv("COMP_WORDS", "refsim ver")
    monkeypatch.setenv("COMP_CWORD", current)
    run = refsim()
    assert (run.out, run.err, run.code) == (answer, "", 0)


def test_bash_takes_the_completion_script():
    run = subprocess.run(
        ["bash", "-c", f'eval "$({sys.executable} -m refsim completion bash)" && complete -p refsim'],
        capture_output=True,
        text=True,
        env=environment(),
        check=True,
        timeout=30,
    )
    assert "_refsim_completion refsim" in run.stdout
