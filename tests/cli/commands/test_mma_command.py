"""refsim mma: the spelled steps end in the bits of the model; lists, codes, files, and what is no operand."""

import json
import shlex
import warnings
from fractions import Fraction

import numpy as np
import pytest

from refsim import encode, files, numerics
from refsim.cli.product_options import MmaOptions
from refsim.cli.products import read
from refsim.formats import E8M0, F64, element_named
from refsim.numerics.methods import GROUPED, LATE, TRUNCATED
from refsim.targets import target_named

ROWS = [(row, k) for row in numerics.PROFILES for k in row.k]
LATER = pytest.mark.ci("every third row and the first of each way to add are spelled in every run")
FIRST = {row.method: place for place, (row, _) in reversed([*enumerate(ROWS)])}
SPELLED = [
    pytest.param(
        row,
        k,
        id=f"{row.name} k{k}".replace(" ", "_"),
        marks=() if place % 3 == 0 or FIRST[row.method] == place else LATER,
    )
    for place, (row, k) in enumerate(ROWS)
]
SMOKE = "--a=-8192,-0.5,-0.25,-0.125 --b 1024,1,1,1 --c 8388608"


def with_features(chip: str) -> str:
    """sm_90a for sm_90, which alone has no wgmma."""
    return target_named(chip).row.names[-1] if chip.startswith("sm_") else chip


def answer(run):
    assert run.code == 0, run.err
    return json.loads(run.out)


def asked(refsim, line):
    return answer(refsim(*shlex.split(line), "--as", "json"))


def case(row, k, seed):
    """Arguments for a random dot product of two instructions: moderate codes, or any at all."""
    random = np.random.default_rng([seed, numerics.PROFILES.index(row), k])
    a_format, b_format = random.choice(row.a_formats), random.choice(row.b_formats)
    words = {}
    for side, format in (("a", a_format), ("b", b_format)):
        if seed == 0 and not format.is_integer:
            values = np.exp2(random.integers(-2, 2, 2 * k)) * random.choice([-1.5, -1.0, 0.0, 1.0], 2 * k)
            codes = values.view(np.uint64) if format is F64 else encode(values, format)
        else:
            codes = random.integers(0, format.code_limit, 2 * k, np.uint64)
        words[f"--{side}"] = ",".join(f"{int(code):#x}" for code in codes)
    width = row.d_format.code_bits
    words["--c"] = hex(int(random.integers(0, 1 << width, dtype=np.uint64))) if seed else "2"
    if row.scales:
        name, block = row.scales[seed % len(row.scales)]
        for side in "ab":
            codes = (
                random.integers(120, 134, 2 * k // block) if name is E8M0 else random.integers(0, 128, 2 * k // block)
            )
            words[f"--{side}-scale"] = ",".join(f"{int(code):#x}" for code in codes)
        words["--scale-format"] = name
    words |= {"--unit": row.unit, "--target": with_features(row.target), "--a-format": a_format, "--b-format": b_format}
    words |= {"--d-format": row.d_format, "--k": str(k)}
    return [f"{option}={word}" for option, word in words.items()], words


@pytest.mark.parametrize(("row", "k"), SPELLED)
def test_spelled_steps_end_in_the_bits_of_the_model(refsim, row, k, refsim_profile):
    """D is that of numerics.mma; the aligned terms of every step add up to its sum."""
    for seed in range(1 if refsim_profile == "quick" else 3):
        check_steps(refsim, row, k, seed)


def check_steps(refsim, row, k, seed):
    arguments, words = case(row, k, seed)
    found = answer(refsim("mma", "--explain", "--zeros", *arguments, "--as", "json"))
    plain = answer(refsim("mma", *arguments, "--as", "json"))
    named = {option.removeprefix("--").replace("-", "_"): word for option, word in words.items()}
    product = read(MmaOptions(**named | {"k": k}))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", numerics.UnverifiedProfileWarning)
        d = numerics.mma(product.a, product.b, product.c, **product.arguments())
    code = int(d.view(f"u{d.dtype.itemsize}").item())
    assert int(found["d"], 16) == int(plain["d"], 16) == code
    if "steps" not in found:
        return
    assert int(found["steps"][-1]["result"], 16) == code
    for term in found["terms"]:
        if not row.scales and term["a"] is not None and np.isfinite(float(term["value"])) and row.d_format is not F64:
            assert term["value"] == term["a_value"] * term["b_value"], term
        if row.scales and term["a_scale"] is not None:
            block = 2 * k // len(words["--b-scale"].split(","))
            place = int(term["term"].split("..")[0]) // block
            given = [int(words[option].split(",")[place], 16) for option in ("--a-scale", "--b-scale")]
            assert [int(term["a_scale"], 16), int(term["b_scale"], 16)] == given, term
    compared = {line["compared"]: line["error"] for line in found["compared"]}
    if compared["exact sum"] is not None:
        assert abs(float(compared["exact sum"])) <= float(compared["derived bound"])
    unit = {step["step"]: step["unit"] for step in found["steps"]}
    for term in found["terms"]:
        if row.method in (TRUNCATED, GROUPED) and term["units"] is not None:
            cut = Fraction(term["value"]) - term["units"] * Fraction(unit[term["step"]])
            assert Fraction(term["lost"]) == cut, term
            assert abs(cut) < unit[term["step"]]
    for step in found["steps"]:
        units = [term["units"] for term in found["terms"] if term["step"] == step["step"]]
        if row.method in (TRUNCATED, GROUPED) and None not in units:
            assert sum(units) == step["units"]


def test_the_smoke_vector_is_spelled(refsim):
    found = asked(refsim, f"mma --explain -t e5m2 {SMOKE}")
    assert (found["d"], found["value"], found["products"], found["zeros_appended"]) == ("0x00000000", 0.0, 32, 28)
    assert [term["units"] for term in found["terms"]] == [-8192, 0, 0, 0, 8192]
    assert [term["lost"] for term in found["terms"]] == [0, -0.5, -0.25, -0.125, 0]
    (step,) = found["steps"]
    assert (step["exponent"], step["unit"], step["largest"], step["zeros"]) == (23, 1024.0, "term 0", 28)
    compared = {row["compared"]: row for row in found["compared"]}
    assert compared["exact sum"]["value"] == -0.875
    assert compared["exact sum, rounded once"]["code"] == compared["float32 FMA, ascending k"]["code"] == "0xbf600000"
    assert abs(found["value"] + 0.875) <= compared["derived bound"]["error"]


@pytest.mark.parametrize(
    ("arguments", "rule"),
    [
        ("-t e5m2 --a inf,1 --b 0,1", "NaN: product 0 is infinity times zero"),
        ("-t e5m2 --a inf,-inf --b 1,1", "NaN: infinities of both signs, 0 and 1"),
        ("-t e4m3 --a 1,nan --b 1,1", "NaN: a[1] is NaN"),
        ("-t e4m3 --a 1 --b 1 --c nan", "NaN: C is NaN"),
        ("-t e5m2 --a inf --b -2", "infinity: 0 is infinite"),
        (
            "-t e4m3 --unit tcgen05.mxf8f6f4 --target sm_100a --a 0 --b 1 --a-scale 0xff --b-scale 1",
            "NaN: the scale of a for 0 is NaN",
        ),
    ],
)
def test_a_special_value_is_blamed(refsim, arguments, rule):
    found = answer(refsim("mma", "--explain", *arguments.split(), "--as", "json"))
    assert [step["rule"] for step in found["steps"]] == [rule]
    assert rule in refsim("mma", "--explain", *arguments.split()).out


def test_c_enters_last_where_the_assembler_rewrites_fp8(refsim):
    arguments = f"-t e5m2 --unit mma.sync --target sm_90a {SMOKE}"
    found = asked(refsim, f"mma --explain {arguments}")
    assert [step["products"] for step in found["steps"]] == ["0, 1, 4, 5, ...", "2, 3, 6, 7, ...", "C"]
    assert [term["term"] for term in found["terms"] if term["step"] == 3] == ["D of step 2", "C"]
    assert found["c_enters"] == LATE


def test_idle_steps_are_counted_and_listed_on_request(refsim):
    arguments = shlex.split(f"mma --explain -t bf16 --unit mma.sync --target sm_80 {SMOKE} --as json")
    short, long = answer(refsim(*arguments)), answer(refsim(*arguments, "--zeros"))
    assert (len(short["steps"]), short["steps_left_out"]) == (1, 1)
    assert len(long["steps"]) == 2
    assert len(long["terms"]) == 18
    assert short["d"] == long["d"] == "0xbf000000"


def test_a_sign_is_turned_where_the_instruction_can(refsim):
    plain = asked(refsim, "mma -t e4m3 --a 1.5,2 --b 1,1")
    turned = asked(refsim, "mma -t e4m3 --a 1.5,2 --b 1,1 --negate-a")
    assert (plain["value"], turned["value"], turned["negate_a"]) == (3.5, -3.5, True)
    spelled = asked(refsim, "mma --explain -t e4m3 --a 1.5,2 --b 1,1 --negate-b")
    assert (spelled["value"], [term["b_value"] for term in spelled["terms"]]) == (-3.5, [-1, -1, None])


@pytest.mark.parametrize(
    ("word", "name", "code"),
    [
        ("1.5", "e4m3", 0x3C),
        ("0x38", "e4m3", 0x38),
        ("0b111000", "e4m3", 0x38),
        ("2", "e4m3", 0x40),
        ("-0", "e5m2", 0x80),
        ("0x1.8p3", "bf16", 0x4140),
        ("inf", "f16", 0x7C00),
        ("-inf", "f16", 0xFC00),
        ("nan", "e4m3", 0x7F),
        ("f32:0x3f800000", "f16", 0x3C00),
        ("-1", "s8", 0xFF),
        ("0xff", "s8", 0xFF),
        ("255", "u8", 255),
        ("-1", "s32", 0xFFFFFFFF),
        ("1.5", "f64", 0x3FF8000000000000),
        ("1", "tf32", 0x3F800000),
        ("2", "e8m0", 0x80),
    ],
)
def test_words_are_codes_or_exact_values(word, name, code):
    from refsim.cli.values import bits_of, code_of

    element = element_named(name)
    assert code_of(word, element) == code
    assert code_of(str(bits_of(code, element)), element) == code


@pytest.fixture
def matrices(tmp_path):
    """a.npy 16 x 64 and b.npy 8 x 64 of e4m3, c.npy 16 x 8 of f32, a3.npy of three dimensions."""
    random = np.random.default_rng(3)
    a, b = (encode(random.standard_normal((rows, 64)), "e4m3") for rows in (16, 8))
    c = random.standard_normal((16, 8)).astype(np.float32)
    files.save(tmp_path / "a.npy", a, "e4m3")
    files.save(tmp_path / "b.npy", b, "e4m3")
    files.save(tmp_path / "c.npy", c.view(np.uint32), "f32")
    files.save(tmp_path / "a3.npy", a[None], "e4m3")
    return a, b, c


def test_a_product_of_files_keeps_the_codes_of_the_model(refsim, matrices, tmp_path):
    a, b, c = matrices
    want = numerics.mma(a, b, c).view(np.uint32)
    assert asked(refsim, "mma --a a.npy --b b.npy --c c.npy -o d.npy")["shape"] == [16, 8]
    kept = files.load(tmp_path / "d.npy")
    assert kept.format.name == "f32"
    assert (kept.codes == want).all()
    one = asked(refsim, "mma --a a.npy --b b.npy --c c.npy --at 11,5")
    spelled = asked(refsim, "mma --a a.npy --b b.npy --c c.npy --at 11,5 --explain")
    assert int(one["d"], 16) == int(spelled["d"], 16) == want[11, 5]
    assert asked(refsim, "mma --a a.npy --b b.npy --c 0.5 -o d.safetensors")["to"] == "d.safetensors"
    half = numerics.mma(a, b, np.full((16, 8), 0.5, np.float32)).view(np.uint32)
    assert (files.load(tmp_path / "d.safetensors").codes == half).all()


def test_a_list_may_come_from_standard_input(refsim):
    line = ("mma", "-t", "e4m3", "--b", "1,2,3", "--as", "json")
    piped = answer(refsim(*line, "--a", "-", stdin=b"0x38, 2\n3\n"))
    assert piped == answer(refsim(*line, "--a", "1,2,3"))
    run = refsim("mma", "-t", "e4m3", "--a", "-", "--b", "-", stdin=b"1 2")
    assert (run.code, run.err.splitlines()[0]) == (2, "[bad-shape] --b has 0 elements")


def test_the_bound_of_integers_says_that_they_wrap(refsim):
    run = refsim("mma", "--explain", "-t", "s8", "--a", "127", "--b", "127", "--c", "2147483647")
    assert run.out.splitlines()[-1].endswith("at most 0, modulo 2^32")


def test_long_sentences_wrap_on_a_page(refsim):
    assert "pre { white-space: pre-wrap }" in refsim("mma", "-t", "e4m3", "--a", "1", "--b", "1", "--as", "html").out


def test_scales_of_files_belong_to_their_rows(refsim, tmp_path):
    random = np.random.default_rng(5)
    a, b = random.integers(0, 16, (3, 128), np.uint8), random.integers(0, 16, (5, 128), np.uint8)
    a_scale, b_scale = (random.integers(0x30, 0x50, (rows, 8), np.uint8) for rows in (3, 5))
    for name, codes, format in (("a", a, "e2m1"), ("b", b, "e2m1"), ("sa", a_scale, "ue4m3"), ("sb", b_scale, "ue4m3")):
        files.save(tmp_path / f"{name}.npy", codes, format)
    want = numerics.mma(
        a,
        b,
        None,
        unit="tcgen05.mxf4nvf4",
        target="sm_100a",
        a_format="e2m1",
        b_format="e2m1",
        a_scale=a_scale,
        b_scale=b_scale,
        scale_format="ue4m3",
    ).view(np.uint32)
    line = "--a a.npy --b b.npy --a-scale sa.npy --b-scale sb.npy --unit tcgen05.mxf4nvf4 --target sm_100a"
    for explain in ("", "--explain"):
        assert int(asked(refsim, f"mma {line} --at 2,3 {explain}")["d"], 16) == want[2, 3]
    run = refsim("mma", *line.replace("sb.npy", "sa.npy").split(), "--at", "2,2")
    assert (run.code, run.err.splitlines()[0]) == (2, "[bad-shape] --b-scale has 3 rows, its operand 5")
    assert asked(refsim, f"mma {line} -o d.npz")["shape"] == [3, 5]
    assert (files.load(tmp_path / "d.npz").codes == want).all()


@pytest.mark.usefixtures("matrices")
@pytest.mark.parametrize(
    ("arguments", "code", "error", "said"),
    [
        ("--unit wgma -t e4m3 --a 1 --b 1", 2, "unknown-name", "nearest: wgmma"),
        ("--target sm_91 -t e4m3 --a 1 --b 1", 2, "unknown-target", "sm_90, sm_100"),
        ("-t e4m4 --a 1 --b 1", 2, "unknown-name", "e4m3, e5m2"),
        ("-t e4m3 --d-format f33 --a 1 --b 1", 2, "unknown-name", "f32, f16, f64, s32"),
        ("-t e4m3 --scale-format e5m2 --a 1 --b 1", 2, "unknown-name", "one of e8m0, ue4m3"),
        ("--a-format e4m3 --b-format f16 --a 1 --b 1", 2, "unknown-arithmetic", "sm_90 wgmma e4m3|e5m2 -> f32"),
        ("-t e4m3 --k 16 --a 1 --b 1", 2, "instruction-k", "k: 32"),
        ("-t e4m3 --k 0 --a 1 --b 1", 2, "out-of-range", "--k"),
        ("-t e4m3 --a 1,2 --b 1", 2, "bad-shape", "--a has 2 elements, --b has 1"),
        ("-t e4m3 --a , --b 1", 2, "bad-shape", "--a has 0 elements"),
        ("-t e4m3 --a 0.3 --b 1", 2, "inexact-value", "give 0x29 (0.28125) or 0x2a (0.3125)"),
        ("-t e4m3 --a inf --b 1", 2, "no-such-value", "e4m3 has no infinity"),
        ("-t e4m3 --a 0x1ff --b 1", 2, "out-of-range", "0x1ff"),
        ("-t e4m3 --a one --b 1", 2, "bad-value", "'one' is not a number"),
        ("-t s8 --a 128 --b 1", 2, "bad-value", "from -128 to 127"),
        ("--a 1 --b 1", 2, "format-needed", "give -t FORMAT"),
        ("-t e4m3 --a 1 --b 1 --a-scale 1", 2, "bad-scale", "takes no scales"),
        (
            "-t e2m1 --unit tcgen05.mxf4nvf4 --target sm_100a --a 1 --b 1 --a-scale 1",
            2,
            "format-needed",
            "--scale-format",
        ),
        (
            "-t e2m1 --unit tcgen05.mxf4 --target sm_100a --a 1 --b 1 --a-scale 1 --b-scale 1",
            2,
            "bad-scale",
            "blocks of 32",
        ),
        ("-t f16 --unit mma.sync --target sm_80 --a 1 --b 1 --negate-a", 2, "bad-modifier", "no such flag"),
        ("--a a.npy --b b.npy", 2, "usage", "--at ROW,COL"),
        ("--a a.npy --b b.npy --explain", 2, "usage", "--at ROW,COL"),
        ("--a a.npy --b b.npy --at 16,0", 2, "out-of-range", "row 16 is outside 0..15"),
        ("--a a.npy --b b.npy --at 0,8", 2, "out-of-range", "column 8 is outside 0..7"),
        ("--a a.npy --b b.npy --at 3", 2, "bad-value", "ROW,COL"),
        ("--a a.npy --b b.npy --c a.npy -o d.npy", 2, "unknown-arithmetic", "e4m3 x e4m3 -> e4m3"),
        ("--a a.npy --b b.npy --c c.npy -t bf16", 2, "format-mismatch", "e4m3"),
        ("--a b.npy --b a.npy --c c.npy -o d.npy", 2, "bad-shape", "c has shape (16, 8)"),
        ("--a b.npy --b a.npy --c c.npy --at 1,1", 2, "bad-shape", "c has shape (16, 8)"),
        ("--a a.npy --b 1,2 -t e4m3 -o d.npy", 2, "bad-shape", "K = 2"),
        ("--a a3.npy --b b.npy -o d.npy", 2, "bad-shape", "(1, 16, 64)"),
        ("--a a.npy --b b.npy --at 1,1 --explain -o d.npy", 2, "usage", "the steps are not codes"),
        ("-t s8 --a a.npy --b b.npy", 2, "unsupported-format", "do not hold s8"),
        ("-t e4m3 --a none.npy --b 1", 3, "no-such-file", "none.npy"),
    ],
)
def test_bad_input_is_an_error_of_the_user(refsim, arguments, code, error, said, tmp_path):
    run = refsim("mma", *arguments.split())
    assert (run.code, run.out) == (code, "")
    assert run.err.startswith(f"[{error}]")
    assert said in run.err
    assert not (tmp_path / "d.npy").exists()


@pytest.mark.parametrize("target", ["sm_120", "sm_121", "sm_90", "sm_100", "sm_70"])
def test_a_target_without_any_unit_for_a_type_is_said_by_name(refsim, target):
    run = refsim("mma", "--a", "1", "--b", "1", "--target", target, "--format", "e2m1")
    assert (run.code, run.out) == (2, "")
    assert run.err.startswith(f"[wrong-target] {target} has no ")
