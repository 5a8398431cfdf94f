"""Kernels of our own through somebody else's compiler: Triton's code for each kind that its users write runs without a
finding or a warning under every policy, with the bits of a reference where they are defined, else within a derived bound.
"""

import warnings
from collections.abc import Iterator
from importlib.metadata import version
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from refsim import ptx
from refsim.errors import RefsimError
from refsim.testing.adapters.triton_kernels import known_defects
from refsim.testing.kernel_files import load_kernel_file

launches = load_kernel_file(Path(__file__).parent / "triton_launches.py")
LAUNCHES = launches.LAUNCHES
TARGETS = [80, 89, 90]
POINTERS = {
    "int32": "*i32",
    "uint32": "*u32",
    "int64": "*i64",
    "uint64": "*u64",
    "float32": "*fp32",
    "float16": "*fp16",
}


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The module of kernels; what Triton compiles of it is kept for this session alone."""
    pytest.importorskip("triton", reason="triton is not installed: pip install 'refsim[triton]'")
    specification = spec_from_file_location("triton_kernels", Path(__file__).parent / "triton_kernels.py")
    assert specification is not None
    assert specification.loader is not None
    module = module_from_spec(specification)
    specification.loader.exec_module(module)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_CACHE_DIR", str(tmp_path_factory.mktemp("triton")))
        yield module


def compiled(kernels: Any, launch: Any, capability: int) -> Any:
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource, compile

    function = getattr(kernels, launch.kernel)
    types = {
        name: launch.pointers.get(name) or POINTERS[value.dtype.name]
        if isinstance(value, np.ndarray) and value.ndim
        else "fp32"
        if isinstance(value, np.float32)
        else "i32"
        for name, value in launch.arguments.items()
    }
    assert [*types, *launch.constants] == function.arg_names
    aligned = {(place,): [["tt.divisibility", 16]] for place, type in enumerate(types.values()) if type[0] == "*"}
    source = ASTSource(
        function,
        signature=types | dict.fromkeys(launch.constants, "constexpr"),
        constexprs=launch.constants,
        attrs=aligned,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return compile(
            source,
            target=GPUTarget("cuda", capability, 32),
            options={"num_warps": launch.warps, "num_stages": launch.stages},
        )


def run(kernel: Any, launch: Any, policy: str) -> tuple[dict[str, Any], ptx.Trace]:
    program = ptx.load(kernel.asm["ptx"])
    entry = kernel.metadata.name
    given = {name: value.copy() for name, value in launch.arguments.items()}
    arguments = list(given.values())
    arguments += [np.uint64(0)] * (len(program.entries[entry]) - len(arguments))  # scratch that no kernel here uses
    checks = ptx.Checks(known=known_defects(version("triton")))
    options = {"shared_bytes": kernel.metadata.shared, "policy": policy, "seed": 5, "checks": checks}
    trace = program.launch(entry, launch.grid, (32 * launch.warps,), arguments, **options)
    return given, trace


OWN_CODE = ("matmul e5m2", "attention")  # FP8 and asynchronous copies are compiled otherwise before sm_89
OFTEN_ALIKE = pytest.mark.ci("the code for sm_89, which is nearly the same, runs in every run")


def _is_alike(name: str, capability: int) -> bool:
    """Hopper's own code for matrices is that of test_triton_attention.py and test_triton_hopper.py."""
    return capability == 90 or (capability == 80 and name not in OWN_CODE)


OF_BOTH = [pytest.param(80, marks=OFTEN_ALIKE), 89]


CASES = [
    pytest.param(name, capability, marks=OFTEN_ALIKE if _is_alike(name, capability) else ())
    for name in LAUNCHES
    for capability in TARGETS
    if (name, capability) != ("matmul e4m3", 80)  # Triton refuses e4m3 before sm_89
]


@pytest.mark.sampled(30, "every kernel and every target in CI, not every pair")
@pytest.mark.parametrize(("name", "capability"), CASES)
def test_a_kernel_by_triton_is_right_and_silent_under_every_policy(
    name: str, capability: int, kernels: Any, refsim_profile: str
) -> None:
    some = refsim_profile == "quick" or (refsim_profile == "ci" and _is_alike(name, capability))
    for launch in LAUNCHES[name][: 1 if some else None]:
        kernel = compiled(kernels, launch, capability)
        for policy in ptx.POLICIES:
            after, trace = run(kernel, launch, policy)
            own = [error for error in trace.warnings if "not a mistake of this kernel" not in error.help]
            reported = [str(error) for error in (*trace.findings, *own)]
            assert not reported, policy
            more = {"capability": capability} if launch.kernel == "matmul" else {}
            launch.check(after, **more)


@pytest.mark.parametrize("capability", OF_BOTH)
def test_every_atomic_with_every_order_and_scope_stands_in_the_code(capability: int, kernels: Any) -> None:
    texts = [
        compiled(kernels, launch("i4"), capability).asm["ptx"]
        for launch in (launches.atomics, launches.atomics_of_a_block)
    ]
    for order in ("relaxed", "acquire", "release", "acq_rel"):
        for scope, text in (("gpu", texts[0]), ("sys", texts[0]), ("cta", texts[1])):
            for operation in ("add.u32", "min.s32", "max.s32", "and.b32", "or.b32", "xor.b32", "exch.b32", "cas.b32"):
                assert f"atom.global.{scope}.{order}.{operation}" in text or (
                    f"atom.global.{order}.{scope}.{operation}" in text
                ), (order, scope, operation)


@pytest.mark.parametrize("capability", OF_BOTH)
def test_a_lock_that_is_released_without_order_is_found(capability: int, kernels: Any) -> None:
    launch = launches.locked("relaxed")
    kernel = compiled(kernels, launch, capability)
    for policy in ptx.POLICIES:
        try:
            codes = {error.code for error in run(kernel, launch, policy)[1].findings}
        except RefsimError as error:
            codes = {error.code}
        assert any("race" in code for code in codes), (policy, codes)
