"""The policies `triton` and `triton.rtz` are what Triton's own code for a cast returns, for every class of inputs."""

import numpy as np
import pytest

from refsim import ptx
from refsim.conversions import convert, policy_patterns

BLOCK, WARPS = 1024, 4
CASTS = {
    "triton.e4m3": ("float8e4nv", "rtne"),
    "triton.e5m2": ("float8e5", "rtne"),
    "triton.rtz.e5m2": ("float8e5", "rtz"),
}
EVERY = [(name, capability) for name in CASTS for capability in (80, 89, 90, 100)]
CASES = [
    pytest.param(name, capability, marks=() if capability == 89 else pytest.mark.ci("Triton's code for sm_89 is run"))
    for name, capability in EVERY
    if (name, capability) != ("triton.e4m3", 80)  # Triton refuses fp8e4nv before sm_89
]


@pytest.fixture
def cast(tmp_path, monkeypatch):
    pytest.importorskip("triton", reason="triton is not installed: pip install 'refsim[triton]'")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "1")  # a cast has no sum to fuse; without it Triton warns
    from tests.ptx import triton_casts

    return triton_casts.cast


def compile_for(function, to, rounding, capability):
    import triton.language as tl
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource, compile

    constants = {"TO": getattr(tl, to), "ROUNDING": rounding, "BLOCK": BLOCK}
    signature = {"x": "*fp32", "y": "*i8"} | dict.fromkeys(constants, "constexpr")
    source = ASTSource(function, signature=signature, constexprs=constants)
    return compile(source, target=GPUTarget("cuda", capability, 32), options={"num_warps": WARPS})


@pytest.mark.parametrize(("name", "capability"), CASES)
def test_a_policy_is_what_tritons_cast_returns(cast, name, capability):
    """On all 196,608 inputs that decide a narrow format, under every profile."""
    patterns = policy_patterns()
    kernel = compile_for(cast, *CASTS[name], capability)
    codes = np.zeros(patterns.size, np.uint8)
    program, entry = ptx.load(kernel.asm["ptx"]), kernel.metadata.name
    scratch = [np.uint64(0)] * (len(program.entries[entry]) - 2)
    arguments = [patterns.view(np.float32), codes, *scratch]
    program.launch(entry, (patterns.size // BLOCK,), (32 * WARPS,), arguments, shared_bytes=kernel.metadata.shared)
    np.testing.assert_array_equal(codes, convert(name, patterns).view(np.uint8))


@pytest.mark.parametrize("to", ["float8e4b8", "float8e5b16"])
def test_triton_refuses_formats_of_amd(cast, to):
    with pytest.raises(Exception, match="not supported in this architecture"):
        compile_for(cast, to, "rtne", 90)
