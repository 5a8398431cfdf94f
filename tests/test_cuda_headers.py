"""NVIDIA's own headers, compiled for the host, are the second definition: every conversion they offer, bit for bit."""

import os
import shutil
import subprocess
from importlib import metadata
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from refsim.conversions import CONVERSIONS, Conversion, convert, decode, encode, pack, policy_patterns
from refsim.formats import BF16, E2M1, E2M3, E3M2, E4M3, E5M2, E8M0, F16, F32, Format

PROGRAM = Path(__file__).parent / "cuda_headers" / "convert.cpp"
NARROW = (E4M3, E5M2, E2M1, E2M3, E3M2, E8M0)
OFFERED = {"f32": 20, "f16": 10, "bf16": 14}  # FP8 x 2 saturations, FP6 and FP4 x 2 roundings, E8M0 x 4, constructors
ROWS = [row for row in CONVERSIONS.values() if row.policy.startswith("cuda.")]


def missing(reason: str) -> None:
    if os.environ.get("CI") == "true":
        pytest.fail(f"needed in CI: {reason}")
    pytest.skip(reason)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("g++")
    if compiler is None:
        missing("g++ is not on PATH")
    try:
        files = metadata.files("nvidia-cuda-runtime") or []
    except metadata.PackageNotFoundError:
        missing("the package nvidia-cuda-runtime is not installed")
    if next(metadata.distributions(name="nvidia-cuda-crt"), None) is None:
        missing("the package nvidia-cuda-crt, which the headers include, is not installed")
    headers = [Path(file.locate()) for file in files if file.name == "cuda_fp8.h"]
    if not headers:
        missing("nvidia-cuda-runtime has no cuda_fp8.h")
    binary = tmp_path_factory.mktemp("cuda_headers") / "convert"
    command = [str(compiler), "-std=c++17", "-O1", f"-I{headers[0].parent}", "-o", str(binary), str(PROGRAM)]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    return binary


def reference(program: Path, names: list[str], patterns: np.ndarray) -> dict[str, np.ndarray]:
    """What the headers give for every pattern, for each of the named functions."""
    done = subprocess.run([program, *names], input=patterns.tobytes(), capture_output=True, check=True, timeout=120)
    results = np.frombuffer(done.stdout, np.uint16).reshape(len(names), -1)
    return dict(zip(names, results, strict=True))


def midpoint_patterns(format: Format) -> np.ndarray:
    """Every value of a format and every midpoint of two neighbours, one ulp to each side, and half an ulp past MAX."""
    values = np.unique(np.abs(format.table[np.isfinite(format.table)]))
    beyond = 2 * values[-1] - values[-2]
    middles = [(low + high) / 2 for low, high in pairwise([*values, beyond])]
    with np.errstate(over="ignore"):
        exact = np.array([*values, *middles, beyond]).astype(np.float32).view(np.uint32)
    magnitudes = np.concatenate([exact, exact + 1, np.maximum(exact, 1) - 1])
    return np.concatenate([magnitudes, magnitudes | 0x80000000])


@pytest.fixture(scope="module")
def single_patterns() -> np.ndarray:
    """270,000 and more float32: the complete set for narrow formats, all midpoints, subnormals, NaN, random bits."""
    rng = np.random.default_rng(20)
    specials = rng.integers(0, 1 << 23, 4000, dtype=np.uint32)
    signs = rng.integers(0, 2, 4000, dtype=np.uint32) << 31
    return np.concatenate(
        [
            policy_patterns(),
            *(midpoint_patterns(format) for format in NARROW),
            specials | signs,
            specials | signs | 0x7F800000,
            rng.integers(0, 1 << 32, 65536, dtype=np.uint32),
        ]
    )


def disagreements(row: Conversion, patterns: np.ndarray, expected: np.ndarray) -> list[str]:
    codes = convert(row.name, patterns)
    differ = np.flatnonzero(codes != expected)
    return [f"{row.name}: {patterns[i]:#x} gives {codes[i]:#x}, headers {expected[i]:#x}" for i in differ[:3]]


@pytest.mark.parametrize("source", [F32, F16, BF16], ids=str)
def test_every_header_conversion_agrees(program: Path, single_patterns: np.ndarray, source: Format) -> None:
    patterns = single_patterns if source is F32 else np.arange(1 << 16, dtype=np.uint16)
    rows = [row for row in ROWS if row.reads is source]
    expected = reference(program, [row.name for row in rows], patterns)
    wrong = [line for row in rows for line in disagreements(row, patterns, expected[row.name])]
    print(f"{len(rows)} conversions x {patterns.size} patterns of {source}: {len(wrong)} disagreements")
    assert not wrong
    assert len(rows) == OFFERED[source.name]
    assert patterns.size >= (200_000 if source is F32 else 65536)


def test_doubles_are_rounded_once(program: Path, single_patterns: np.ndarray) -> None:
    """The float64 path of encode: float64 neighbours of float32 values; NaN keep their sign there."""
    with np.errstate(invalid="ignore"):
        singles = single_patterns[::2].view(np.float32).astype(np.float64)
    values = np.concatenate([singles, np.nextafter(singles, 0), np.nextafter(singles, np.inf)])
    values = values[~np.isnan(values)]
    names = [f"cuda.satfinite.{format}.f64" for format in NARROW if format is not E8M0]
    expected = reference(program, names, values)
    for format, name in zip(NARROW, names, strict=False):
        np.testing.assert_array_equal(encode(values, format), expected[name], err_msg=name)
    scales = reference(program, ["cuda.nosat.rp.e8m0.f64"], values)["cuda.nosat.rp.e8m0.f64"]
    np.testing.assert_array_equal(encode(np.abs(values), E8M0, rounding="up", overflow="nan"), scales)
    print(f"{len(names) + 1} conversions x {values.size} float64: 0 disagreements")


@pytest.mark.parametrize("format", NARROW, ids=str)
def test_pairs_lie_as_in_the_header_types(program: Path, single_patterns: np.ndarray, format: Format) -> None:
    patterns = single_patterns[: single_patterns.size & ~1]
    expected = reference(program, [f"pair.{format}"], patterns)[f"pair.{format}"]
    codes = convert(f"cuda.constructor.{format}.f32", patterns)
    np.testing.assert_array_equal(pack(codes, format, "x2"), expected)


@pytest.mark.parametrize("format", NARROW, ids=str)
def test_decoders_agree(program: Path, format: Format) -> None:
    """Halves from FP8, FP6 and FP4, bfloat16 from E8M0: by value, and by bits through the PTX rows."""
    codes = np.arange(format.code_limit, dtype=np.uint16)
    expected = reference(program, [f"decode.{format}"], codes)[f"decode.{format}"]
    wide = "bf16" if format is E8M0 else "f16"
    np.testing.assert_array_equal(decode(codes, format), decode(expected, wide))
    name = "cvt.rn.bf16x2.ue8m0x2" if format is E8M0 else f"cvt.rn.f16x2.{format}x2"
    register = pack(codes, format, "x2")
    lower = convert(name, register) & 0xFFFF
    upper = convert(name, register) >> 16
    np.testing.assert_array_equal(np.stack([lower, upper], axis=-1).reshape(-1), expected)
