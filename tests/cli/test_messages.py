"""Messages of wrong command lines: what is wrong, where, and the way out, in the words of the command line."""

import sys

import numpy as np
import pytest

from refsim.device.driver import no_driver
from refsim.scaling import BLOCK_FORMATS

CUDA = """\
extern "C" __global__ void scale(const float* x, float* y, float s, int n) {
    int i = threadIdx.x;
    if (i < n) y[i] = x[i] * s;
}
"""


@pytest.mark.parametrize("command", ["decode", "encode", "table"])
@pytest.mark.parametrize(("name", "near"), [("e4m4", "e4m3"), ("e5m3", "e5m2"), ("bfloat", "bfloat16")])
def test_a_first_word_that_begins_as_a_name_is_a_format(command, name, near, refsim):
    run = refsim(command, name, *(["1"] if command != "table" else []))
    assert run.err.startswith(f"[unknown-format] no format is called {name!r}")
    assert near in run.err


@pytest.mark.parametrize(
    "command", ["decode {} 3", "encode {} 3", "decode -t {} 3", "table {}", "mma -t {} --a 1 --b 1"]
)
@pytest.mark.parametrize("block", [row for row in BLOCK_FORMATS if row.name != "mxfp8"], ids=str)
def test_a_block_format_says_its_elements_and_scales(command, block, refsim):
    error = refsim(*command.format(block.name).split()).err
    assert f"{block.name} is a block format" in error
    assert f"{block.element} for its elements, {block.scale} for its scales" in error


@pytest.mark.parametrize("words", ["0x7e", "7e", "x.npy", "nan", "-1.5", "f32:0x3f800000", ".5"])
def test_without_a_format_the_help_is_the_command_with_one(words, refsim):
    assert f"refsim encode e4m3 {words}" in refsim("encode", words).err


def test_a_format_may_be_given_twice_and_not_two_formats(refsim):
    assert refsim("decode", "e4m3", "-t", "e4m3", "0x7e").out == refsim("decode", "e4m3", "0x7e").out != ""
    assert "-t e5m2 contradicts e4m3" in refsim("decode", "-t", "e5m2", "e4m3", "0x7e").err


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("diff x.npy u8.npy -t e4m3", "help: name no format, or f32"),
        ("diff u8.npy u8.npy", "help: give -t FORMAT"),
        ("show two.npz -t e4m3", "help: give --key NAME"),
        ("scales where nvidia_128x4 3", "help: give both, or --byte BYTE"),
        (
            "scales where nvidia_128x4 300 9",
            "help: give --shape ROWSxBLOCKS: without it only the first tile of nvidia_128x4",
        ),
        ("decode -t", "at: refsim decode"),
        ("table e4m3 e5m2", "help: refsim table [OPTIONS] FORMAT"),
        ("mma", "[missing-argument] --a is missing"),
        ("decode e4m3 448", "help: refsim encode -t e4m3 448 gives the code of that value"),
        ("decode e4m3 0x1ff", "help: name the format of these codes, such as bf16"),
        ("decode -t bf16 x.npyy", "help: nearest: x.npy"),
        ("encode e4m3 1 --nan 0x1ff", "at: --nan"),
        ("encode e4m3 0,3", "help: 0.3, with a decimal point"),
        ("encode e4m3 x.npy", "help: refsim.encode(array, format) in Python"),
        ("formats int8", "int8 is an element type, not a number format"),
        ("diffpolicy torch triton", "help: refsim diffpolicy e4m3 torch OTHER"),
        ("swizzle 128B -5", "-5: no argument is negative"),
        ("numerics bits sm_90 wgmma", "help: give options: --target, --unit"),
        ("new kernel", "example: refsim new kernel scale"),
        ("verify --cases many", "help: such as --cases 1"),
        ("banks --lanes 33", "rule: --lanes is 1 to 32"),
        ("banks --layout mma.m16n8k16.bf16.a --tile 8x8", "help: --tile 16x16 or larger"),
        ("kernels nofile.py", "at: nofile.py"),
        ("kernels x.npy", "help: give the declaration, e.g. x_kernel.py"),
        ("blame k.cu scale --arg i32", "argument 0: 'i32' has no type and value"),
        ("blame k.cu scale --grid 0", "'0' is not a grid or block"),
        ("swizzle 128B --tile 8x64", "help: give -t FORMAT"),
        ("decode -t f32 xx.npy", "help: nearest: x.npy"),
        ("decode -t f32 nowhere/x.npy", "help: there is no folder nowhere"),
    ],
)
def test_the_way_out_is_spelled_as_on_the_command_line(line, wanted, refsim):
    np.save("x.npy", np.arange(8, dtype=np.float32))
    np.save("u8.npy", np.arange(8, dtype=np.uint8))
    np.savez("two.npz", a=np.uint8([1]), b=np.uint8([2]))
    run = refsim(*line.split())
    assert (run.code in (2, 3), run.out) == (True, "")
    assert wanted in run.err


@pytest.mark.parametrize("line", ["simulate x.npy k", "replay x.npy", "simulate x.cu k", "ptx coverage x.npy"])
def test_a_binary_file_is_said_to_be_what_it_is(line, refsim):
    for name in ("x.npy", "x.cu"):
        with open(name, "wb") as file:
            np.save(file, np.zeros(3))
    error = refsim(*line.split()).err
    assert "the file is an array of NumPy (.npy)" in error
    assert "help: give " in error
    assert "codec" not in error


def test_without_an_entry_all_are_listed_with_a_command(refsim, tmp_path):
    (tmp_path / "k.cu").write_text(CUDA)
    error = refsim("simulate", "k.cu").err
    assert "entry scale (scale_param_0: u64 or pointer, scale_param_1: u64 or pointer, scale_param_2: f32, " in error
    assert "refsim simulate k.cu scale --arg FILE.npy --arg FILE.npy --arg f32:1 --arg u32:1" in error


@pytest.mark.parametrize("integer", ["i32:8", "s32:8", "u32:8", "int:8"])
def test_arguments_have_the_names_of_c_and_print_as_numbers(integer, refsim, tmp_path):
    (tmp_path / "k.cu").write_text(CUDA)
    np.save("x.npy", np.arange(8, dtype=np.float32))
    given = ("x.npy", "zeros:f32:8", "float:2", integer)
    run = refsim("simulate", "k.cu", "scale", "--block", "8", *(word for each in given for word in ("--arg", each)))
    assert "argument 0: 0.0 1.0 2.0 3.0" in run.out + run.err
    assert "argument 1: 0.0 2.0 4.0 6.0" in run.out + run.err


@pytest.mark.parametrize(("dtype", "is_accepted"), [("<i4", 1), ("<i8", 1), ("<f8", 1), (">i8", 1), ("<u4", 0)])
def test_an_array_that_cannot_be_codes_is_an_argument(dtype, is_accepted, refsim, tmp_path):
    (tmp_path / "k.cu").write_text(CUDA)
    np.save("x.npy", np.arange(8).astype(dtype))
    run = refsim(
        "simulate", "k.cu", "scale", "--arg", "x.npy", "--arg", "zeros:f32:8", "--arg", "f32:1", "--arg", "s32:8"
    )
    assert (run.code, "argument 0: 0" in run.out + run.err) == (
        (0, True) if is_accepted else (3 if dtype != "<u4" else 2, False)
    )


@pytest.mark.parametrize(
    ("argument", "wanted"),
    [
        ("long:3", "types are u8, u16"),
        ("3", "types are u8, u16"),
        ("s8:200", "a whole number in -2^7 to 2^7 - 1"),
        ("f32:x", "f32:1.5 or f32:0x1"),
        ("zeros:f32", "has no count"),
        ("e4m4:x.npy", "nearest: e4m3"),
        ("u16.npy", "give the format in --arg FORMAT:u16.npy"),
    ],
)
def test_a_refused_argument_lists_what_there_is(argument, wanted, refsim, tmp_path):
    (tmp_path / "k.cu").write_text(CUDA)
    np.save("u16.npy", np.arange(8, dtype=np.uint16))
    assert wanted in refsim("simulate", "k.cu", "scale", "--arg", argument).err


@pytest.mark.parametrize("line", ["verify fp8_amax --cases 1", "order nosuch", "kernels nosuch.py"])
def test_a_machine_without_a_gpu_says_nothing_of_a_driver(line, refsim, monkeypatch):
    def absent(*_, **__):
        raise no_driver(OSError("libcuda.so.1: cannot open shared object file"))

    monkeypatch.setattr("refsim.device.cuda.open_device", absent)
    assert "libcuda" not in refsim(*line.split()).err
    assert "libcuda" in refsim("verify", "--device", "cuda").err


@pytest.mark.parametrize(
    "line", ["verify --without races", "simulate k.cu k --without races", "run --without races -- true"]
)
def test_a_misspelt_check_is_the_options_fault(line, refsim):
    run = refsim(*line.split())
    assert run.code == 2
    assert "no check is called 'races'\n  at: --without\n  help: nearest: race" in run.err


def test_a_format_that_stands_last_is_put_first_in_the_help(refsim):
    assert "name it first or by -t: refsim encode bf16 1.5 2; or" in refsim("encode", "1.5", "2", "bf16").err
    assert "name it first or by -t: refsim encode e4m3 1.5; or" in refsim("encode", "1.5").err
    assert "refsim encode" not in refsim("approx", "ex2", "abc").err


def test_an_option_of_a_command_without_options_has_the_help_page_alone(refsim):
    assert "\n  help: refsim numerics --help\n" in refsim("numerics", "--target", "sm_90").err


def test_a_code_is_explained_as_it_is_pasted(refsim):
    whole = refsim("explain", "unknown-target").out
    assert whole == refsim("explain", "[Unknown-Target]").out != ""


@pytest.mark.parametrize(("program", "code"), [("absent.py", 2), ("empty.py", 0)])
def test_a_program_that_used_no_gpu_is_one_line(program, code, refsim, tmp_path):
    (tmp_path / "empty.py").write_text("")
    run = refsim("run", "--", sys.executable, program)
    assert (
        run.out == f"the program used no GPU: nothing was launched or allocated before it ended with exit code {code}\n"
    )
    assert '"launches": 0' in refsim("run", "--as", "json", "--", sys.executable, program).out
