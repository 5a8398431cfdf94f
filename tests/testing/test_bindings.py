"""The bundled declarations on a NumPy stand-in: the wiring of every kernel, and what their campaigns catch."""

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

from refsim.errors import RefsimError
from refsim.testing import run_campaign
from refsim.testing.kernel_files import bundled_kernels, load_kernel_file
from refsim.testing.recipes import Tensor, from_json, to_json
from refsim.testing.runs import examine

bindings = load_kernel_file(bundled_kernels())
TYPES = {"bf16": ml_dtypes.bfloat16, "f16": np.float16, "f32": np.float32}
NARROW = {"e4m3": (ml_dtypes.float8_e4m3fn, 448), "e5m2": (ml_dtypes.float8_e5m2, 57344)}


def _canonical(values, dtype):
    codes = values.astype(dtype)
    codes = codes.view(f"u{codes.dtype.itemsize}")
    codes[np.isnan(values)] = np.iinfo(codes.dtype).max >> 1
    return codes


def _amax(wide):
    def entry(launcher, x, n, amax_bits):
        magnitudes = np.abs(launcher.view(x).view(TYPES[wide]).astype(np.float32))
        # Not np.fmax, here or below: C's fmax of a signalling NaN and a number is NaN.
        largest = np.where(np.isnan(magnitudes), np.float32(0), magnitudes).max(initial=np.float32(0))
        launcher.view(amax_bits)[:] = largest.view(np.uint32)

    return entry


def _quantize(wide, to, saturate=True, multiply=np.multiply, vector=1):
    dtype, limit = NARROW[to]

    def entry(launcher, *buffers):
        x, n, amax_bits, q, scale_out, eps = buffers
        amax = launcher.view(amax_bits).view(np.float32)[0]
        scale = np.float32(limit) / (amax if amax > eps else eps)  # a NaN is not above eps
        scaled = multiply(launcher.view(x).view(TYPES[wide]).astype(np.float32), scale)
        whole = int(n) // vector * vector
        launcher.view(q)[:whole] = _canonical(np.clip(scaled, -limit, limit) if saturate else scaled, dtype)[:whole]
        launcher.view(scale_out)[:] = np.float32(1) / scale

    return entry


def _dequantize(narrow, wide):
    def entry(launcher, q, n, scale, y):
        values = launcher.view(q).view(NARROW[narrow][0]).astype(np.float32) * launcher.view(scale)[0]
        launcher.view(y)[:] = _canonical(values, TYPES[wide])

    return entry


def _quiet(entry):
    def run(*arguments):
        with np.errstate(all="ignore"):
            entry(*arguments)

    return run


LATER = pytest.mark.ci("a stand-in for fp8_quantize passes, and a wrong one is caught, in every run")


def entries(**change):
    made = {f"fp8_amax_{wide}": _amax(wide) for wide in TYPES}
    made |= {f"fp8_quantize_{wide}_{to}": _quantize(wide, to, **change) for wide in TYPES for to in NARROW}
    made |= {f"fp8_dequantize_{to}_{wide}": _dequantize(to, wide) for wide in TYPES for to in NARROW}
    return {name: _quiet(entry) for name, entry in made.items()}


@pytest.mark.parametrize(
    "kernel",
    [
        pytest.param(each, id=each.name, marks=LATER if each is not bindings.FP8_QUANTIZE else ())
        for each in bindings.KERNELS
    ],
)
def test_campaign_passes_on_a_right_stand_in(kernel, numpy_device):
    device = numpy_device(entries())
    assert set(kernel.entries) <= set(device.entries)
    verdict = run_campaign(kernel, device, profile="quick")
    assert verdict.status == "pass", str(verdict)
    assert verdict.cases == len(kernel.corpus) + 25


@pytest.mark.parametrize(
    "change",
    [
        {"saturate": False},
        {"multiply": lambda x, scale: (x.astype(np.float16) * np.float16(scale)).astype(np.float32)},
        {"vector": 8},
    ],
    ids=["no-saturation", "half-precision", "tail"],
)
def test_campaign_catches_a_wrong_stand_in(change, numpy_device):
    verdict = run_campaign(bindings.FP8_QUANTIZE, numpy_device(entries(**change)), profile="quick")
    assert verdict.status == "fail"
    assert verdict.problem["x"]["n"] <= 8


@pytest.mark.parametrize("kernel", bindings.KERNELS, ids=lambda kernel: kernel.name)
def test_corpus_travels_as_json(kernel):
    assert all(from_json(kernel.recipe, to_json(problem)) == problem for problem in kernel.corpus)


def test_given_amax_is_an_input_that_stays(numpy_device):
    def spoils(launcher, *buffers):
        _quiet(_quantize("bf16", "e4m3"))(launcher, *buffers)
        launcher.view(buffers[2])[:] = 0

    device = numpy_device({**entries(), "fp8_quantize_bf16_e4m3": spoils})
    problem = bindings.Quantize(Tensor(5, "bf16", "ones"), amax_bits=bindings.ONE)
    finding = examine(bindings.FP8_QUANTIZE, problem, device).finding
    assert finding.mismatch.name == "input amax_bits"
    assert examine(bindings.FP8_QUANTIZE, replace(problem, amax_bits=None), device).finding is None


@pytest.mark.parametrize(
    "make",
    [
        lambda: bindings.Amax(Tensor(1, "e4m3")),
        lambda: bindings.Quantize(Tensor(1, "bf16"), "e2m1"),
        lambda: bindings.Quantize(Tensor(1, "bf16"), amax_bits=1 << 32),
        lambda: bindings.Dequantize(Tensor(1, "e4m3"), scale_bits=-1),
        lambda: bindings.Dequantize(Tensor(1, "e4m3"), "e5m2"),
        lambda: bindings.Dequantize(Tensor(1, "e4m3"), misalign_y=65),
    ],
)
def test_wrong_problem_is_refused(make):
    with pytest.raises(RefsimError):
        make()
