"""Numbers of a command line: ASCII digits, few of them; errors that show the ends of what was typed."""

import itertools
import re

import numpy as np
import pytest

from refsim.cli.spelled import count_in, number_in, real_in

ODD = {
    "raised 2": "²",
    "arabic": "٣",
    "full width": "１",
    "5,000 digits": "9" * 5000,
    "underscore": "1_0",
    "blank": " 1",
}
PTX = ".version 8.0\n.target sm_90\n.address_size 64\n.visible .entry k()\n{\n ret;\n}\n"
PLACES = (
    "simulate k.ptx k --grid {}",
    "simulate k.ptx k --block {}",
    "simulate k.ptx k --block 2x{}",
    "simulate k.ptx k --cluster {}",
    "simulate k.ptx k --shared {}",
    "simulate k.ptx k --seed {}",
    "simulate k.ptx k --seconds {}",
    "simulate k.ptx k --arg u32:{}",
    "simulate k.ptx k --arg f32:{}",
    "simulate k.ptx k --arg zeros:f32:{}",
    "simulate k.ptx k --arg zeros:f32:4 --save {}=y.npy",
    "simulate k.ptx k --trace {}",
    "simulate k.ptx k --at {}",
    "simulate k.ptx k --at arg0:{}",
    "simulate k.ptx k --target sm_{}",
    "verify --cases {}",
    "verify --seed {}",
    "verify --device cuda:{}",
    "decode -t e4m3 {}",
    "encode -t e4m3 {}",
    "encode -t e4m3 1e{}",
    "encode -t e4m3 f32:{}",
    "diff x.npy x.npy -t bf16 --within {}",
    "banks {}",
    "banks 0 --width {}",
    "banks --stride {}",
    "banks --stride 4 --lanes {}",
    "banks --layout mma.m16n8k16.bf16.a --width {}",
    "mma --a 1 --b 1 --unit mma.sync --a-format bf16 --k {}",
    "mma --a 1 --b 1 --at {},0",
    "layout where mma.m16n8k16.bf16.a {} 0",
    "layout where mma.m16n8k{}.bf16.a 0 0",
    "layout show wgmma.m64n{}k16.bf16.d",
    "layout show tcgen05.m128n{}.1sm.d",
    "layout show mfma.{}x32x8.f16.a",
    "layout holds mma.m16n8k16.bf16.a {}",
    "show x.npy -t bf16 --shape {}x1",
    "show x.npy -t bf16 --rows {}:",
    "swizzle 128B {}",
    "swizzle swizzle<{},4,3>",
    "scales where nvidia_128x4 {} 0",
    "desc decode wgmma-smem {}",
    "desc encode wgmma-smem start_address={}",
    "desc walk wgmma-smem 0x4000 --start {}",
)
BLANKS_WELCOME = ("simulate k.ptx k --at {}", "swizzle swizzle<{},4,3>")


@pytest.mark.parametrize("place", PLACES)
def test_a_number_of_other_digits_is_one_short_error(refsim, tmp_path, place):
    (tmp_path / "k.ptx").write_text(PTX)
    np.save(tmp_path / "x.npy", np.arange(4, dtype=np.uint16))
    for name, word in ODD.items():
        if name == "blank" and place in BLANKS_WELCOME:
            continue
        done = refsim(*place.format(word).split(" ") if " " not in word else [p.format(word) for p in place.split(" ")])
        assert done.code in (2, 3, 4), f"{name}: {done}"
        assert done.err.startswith("[") or "simulated GPU" in done.err, name
        assert max(map(len, done.err.splitlines())) < 500, name


LONG = "x" * 300


@pytest.mark.parametrize(
    "line",
    [
        f"simulate k.ptx {LONG}",
        f"simulate {LONG} k",
        f"simulate {LONG}.npy.ptx k",
        f"decode -t {LONG} 1",
        f"decode -t e4m3 {LONG}.npy",
        f"layout show {LONG}",
        f"layout show mma.{LONG}",
        f"swizzle {LONG}",
        f"scales where {LONG} 0 0",
        f"desc decode {LONG} 0",
        f"desc encode wgmma-smem {LONG}=1",
        f"verify {LONG}",
        f"verify --kernels {LONG}.py",
        f"verify --device {LONG}",
        f"verify fp8_amax --device sim --target {LONG}",
        f"kernels {LONG}",
        f"replay {LONG}.json",
        f"{LONG}",
        f"--{LONG}",
        f"ptx explain {LONG}",
        f"ptx coverage {LONG}",
        f"show {LONG}.npy",
        f"sources {LONG}",
        f"bringup --baseline {LONG}.json",
        f"mma --a 1 --b 1 --unit {LONG}",
        f"encode -t e4m3 {LONG}",
        f"encode -t e4m3 1 --via {LONG}",
        f"formats --as {LONG}",
        f"formats -o {LONG}",
        f"scales shuffle {LONG}",
        f"scales shuffle {LONG} {LONG}",
        f"scales shuffle {LONG}.npy",
        f"scales shuffle x.npy {LONG}.npy",
        f"scales unshuffle nvidia_128x4 {LONG}.npy y.npy --shape 8x8",
        "scales shuffle ",
        "scales shuffle nvidia_128x4 ",
        "scales shuffle .",
        "scales shuffle /",
        f"simulate k.ptx k -I {LONG}",
        f"simulate k.cu k -I {LONG}",
        f"simulate k.ptx k --save {LONG}.npz",
        f"diff {LONG}.npy x.npy",
        f"desc decode wgmma-smem {LONG}.bin",
        f"layout check mma.m16n8k16.bf16.a {LONG}.npy",
        f"bringup -o {LONG}.json",
        f"bringup --junit {LONG}.xml",
        f"bringup --device sim --state {LONG}",
        f"verify --junit {LONG}.xml",
        f"banks {LONG}",
        f"new kernel {LONG}",
    ],
)
def test_a_name_of_300_letters_or_of_none_is_one_short_error(refsim, tmp_path, line):
    (tmp_path / "k.ptx").write_text(PTX)
    (tmp_path / "k.cu").write_text('extern "C" __global__ void k() {}')
    np.save(tmp_path / "x.npy", np.zeros((8, 8), np.uint8))
    done = refsim(*line.split(" "))
    assert done.code in (2, 3, 4), done
    assert done.err.startswith("[")
    assert max(map(len, done.err.splitlines())) < 500


def test_which_words_are_numbers():
    assert [number_in(word) for word in ("42", "007", "-3", "+3", "0x2a", "0b1_0", "0X1F")] == [42, 7, -3, 3, 42, 2, 31]
    assert all(number_in(word) is None for word in (*ODD.values(), "", "+", "0x", "0b2", "1e3", "0o7", "--1", "0x_1"))
    assert (count_in("42"), count_in("-1"), count_in("0x2"), count_in("+4")) == (42, None, None, None)
    assert (real_in("1.5"), real_in("1e-9")) == (1.5, 1e-9)
    for word in ODD.values():
        with pytest.raises(ValueError, match=re.escape(word)):
            real_in(word)


def test_the_width_of_a_terminal_is_such_a_number(refsim, monkeypatch):
    plain = refsim("formats").out
    for word in ODD.values():
        monkeypatch.setenv("COLUMNS", word)
        assert refsim("formats").out == plain


def test_an_error_keeps_the_ends_of_a_long_word():
    from refsim.errors import RefsimError

    lines = str(RefsimError("x", f"no {'a' * 5000}z is 'here'", where="b" * 5000, help="short")).splitlines()
    assert [len(line) < 420 for line in lines] == [True] * 3
    assert lines[0].startswith("[x] no aaaa")
    assert lines[0].endswith("aaz is 'here'")
    many = str(RefsimError("x", "y " * 5000))
    assert len(many) < 2100
    assert all(
        str(RefsimError("x", "a " * count)) == f"[x] {'a ' * count}" for count in itertools.chain(range(3), [900])
    )
