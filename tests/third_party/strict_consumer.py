"""Somebody else's typed code: every public function of refsim once, with the types that it says it returns.

`test_strict_types.py` gives this file to `mypy --strict`; nothing here is executed.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis.strategies import SearchStrategy
from numpy.typing import NDArray

import refsim
from refsim import (
    causes,
    compare,
    conversions,
    device,
    files,
    formats,
    kernels,
    layouts,
    numerics,
    oracles,
    ptx,
    scaling,
    testing,
)
from refsim.testing import adapters

Codes = NDArray[np.unsignedinteger[Any]]


def values_and_codes(values: NDArray[np.float64], words: NDArray[np.uint32]) -> list[Codes]:
    row: refsim.Format = formats.format_named("e4m3")
    rows: tuple[refsim.Format, ...] = refsim.FORMATS
    assert refsim.__version__
    assert row in rows
    assert row.specials is formats.Specials.NAN_ALL_ONES
    named = (
        refsim.BF16,
        refsim.E2M1,
        refsim.E2M3,
        refsim.E3M2,
        refsim.E4M3,
        refsim.E4M3FNUZ,
        refsim.E5M2,
        refsim.E5M2FNUZ,
        refsim.E8M0,
        refsim.F16,
        refsim.F32,
        refsim.MXINT8,
        refsim.TF32,
        refsim.UE4M3,
        refsim.UE5M3,
    )
    widths: list[int] = [each.bits for each in named]
    rounding: conversions.RoundingName = "nearest-even"
    container: conversions.Container = "dense"
    overflow: conversions.Overflow = "saturate"
    codes: Codes = refsim.encode(values, row, rounding, overflow)
    single: NDArray[np.float32] = refsim.decode(codes, "e4m3", np.float32)
    back: NDArray[np.float64] = refsim.decode(codes, "e4m3")
    packed: Codes = refsim.pack(codes, refsim.E4M3, container)
    unpacked: Codes = refsim.unpack(packed, refsim.E4M3)
    converted = refsim.convert("cvt.rn.satfinite.e4m3x2.f32", words, words)
    assert len(widths) == len(rows)
    assert single.shape == back.shape
    return [codes, packed, unpacked, converted, refsim.encode(back, "e5m2")]


def converted(values: NDArray[np.float64], words: NDArray[np.uint32]) -> list[Codes]:
    row: conversions.Conversion = conversions.conversion_named("cvt.rn.satfinite.e4m3x2.f32")
    rows: dict[str, conversions.Conversion] = conversions.CONVERSIONS
    assert rows[row.name] is row
    modes: tuple[conversions.RoundingName, ...] = (*conversions.ROUNDINGS, *conversions.PTX_ROUNDINGS.values())
    beyond: tuple[conversions.Overflow, ...] = conversions.OVERFLOWS
    found: tuple[conversions.PolicyDifference, ...] = conversions.diff_policies(
        "e4m3", "torch", "cuda.satfinite", conversions.policy_patterns()
    )
    known = [each.policy for each in conversions.KNOWN_DIFFERENCES if found]
    odd: NDArray[np.float64] = conversions.round_to_odd(values, np.zeros_like(values))
    assert known
    codes: Codes = conversions.encode(odd, "e4m3", modes[0], beyond[0])
    back: NDArray[np.float64] = conversions.decode(codes, "e4m3")
    dense: Codes = conversions.pack(codes, "e4m3", conversions.CONTAINERS[0])
    return [
        conversions.round_bits(back, "bf16"),
        conversions.unpack(dense, "e4m3"),
        conversions.convert(row.name, words, words),
    ]


def elements() -> list[tuple[str, int, np.dtype[Any]]]:
    rows: tuple[formats.ElementType, ...] = formats.ELEMENTS
    integers: list[formats.Integer] = [formats.S32, formats.S8, formats.U8, formats.S4, formats.U4, formats.B1]
    named: formats.ElementType = formats.element_named("s8")
    assert formats.array_type("s16") in formats.ARRAY_TYPES
    double: refsim.Format = formats.float_named(formats.F64)
    assert isinstance(named, formats.Integer) == named.is_integer
    value: float = double.value(0x3FF0000000000000) + sum(row.value(1) for row in integers)
    return [(row.name, row.bits, row.code_dtype) for row in rows if value]


def the_way_out(error: refsim.RefsimError) -> list[tuple[str, str]]:
    code: str = error.code
    return [(code, str(error.exit_code)), *error.details()]


def products(a: NDArray[np.uint8], b: NDArray[np.uint8], c: NDArray[np.float32]) -> bool:
    row: numerics.Profile = numerics.profile("sm_90a", "wgmma", "e4m3", "e4m3", "f32")
    got: NDArray[Any] = numerics.mma(a, b, c, unit=row.unit, a_format="e4m3", b_format="e4m3", d_format="f32")
    exact: NDArray[Any] = numerics.exact_product(a, b, c, a_format="e4m3", b_format=refsim.E4M3)
    loop: NDArray[Any] = numerics.fma_product(a, b, c, a_format="e4m3", b_format="e4m3")
    bound: NDArray[np.float64] = numerics.error_bound(
        a, b, c, unit="wgmma", a_format="e4m3", b_format="e4m3", d_format="f32", negate_a=False
    )
    closed: tuple[str, str, str] = (row.rounding.name, row.order.value, row.c_enters.value)
    stored: NDArray[Any]
    positions: NDArray[np.uint8]
    stored, positions = numerics.compress(numerics.decompress(a, np.zeros(a.shape, np.uint8), "e4m3"), "e4m3")
    inferred: numerics.Profile = numerics.sparse_profile("sm_90a", "wgmma", "e4m3", "e4m3", "f32")
    special: NDArray[Any] = numerics.approx("ex2.approx.ftz.f32", np.array([0.5], np.float32))
    assert special.size == 1
    sparse: NDArray[Any] = numerics.mma(stored, b, unit=inferred.unit, metadata=positions)
    assert sparse.dtype == np.float32
    assert issubclass(numerics.UnverifiedProfileWarning, UserWarning)
    return (
        bool(closed)
        and row in numerics.PROFILES
        and bool((abs(got - exact) <= bound).all())
        and got.shape == loop.shape
    )


def who_holds(addresses: NDArray[np.int64], word: int) -> list[str]:
    fragment: layouts.Fragment = layouts.fragment("wgmma.m64n128k32.e4m3.d")
    names: tuple[str, ...] = layouts.fragments("wgmma")
    swizzle: layouts.Swizzle = layouts.swizzle("128B")
    major: layouts.Major = "K"
    tile: layouts.Tile = layouts.tile(major, swizzle, 1, (64, 128))
    scales: layouts.ScaleLayout = layouts.scale_layout("nvidia_128x4")
    conflicts: layouts.BankConflicts = layouts.bank_conflicts(addresses, width=layouts.access_width("ldmatrix"))
    stored: layouts.BankConflicts = layouts.layout_conflicts(fragment, tile)
    operand: layouts.Operand = layouts.operand_named("wgmma.m64n128k32.e4m3.b")
    kind: layouts.Descriptor | layouts.TensorMapForm = layouts.descriptor("wgmma-smem")
    encoded: int = layouts.operand_descriptor("wgmma-smem", tile, 0)
    assert isinstance(kind, layouts.Descriptor)
    walked: layouts.Walk = layouts.walk(kind, word | encoded, operand.name, major=major)
    interleave: layouts.Interleave = "none"
    mode: layouts.SwizzleMode = "128B"
    promotion: layouts.L2Promotion = "256B"
    fill: layouts.OobFill = "zeros"
    tensor_map: layouts.TensorMap = layouts.tensor_map(
        "bf16", (64, 64), (64, 64), interleave=interleave, swizzle=mode, l2_promotion=promotion, oob_fill=fill
    )
    columns: layouts.TensorMap = layouts.im2col_map("uint8", (64, 9, 2), 16, 64, lower=(-1,), upper=(-1,))
    box: layouts.PixelBox | None = columns.pixels
    assert box is not None
    drawing: layouts.Drawing = layouts.draw(fragment)
    collisions: tuple[layouts.Collision, ...] = (*conflicts.collisions(), *stored.collisions())
    tables: list[tuple[object, ...]] = [
        layouts.DATA_TYPES,
        layouts.DESCRIPTORS,
        layouts.FAMILIES,
        layouts.MAJORS,
        layouts.SCALE_LAYOUTS,
        layouts.SWIZZLES,
    ]
    shown: list[object] = [scales, walked, tensor_map, drawing, collisions, tables]
    return [*names, *map(str, shown)]


def rests_on(evidence: layouts.Evidence, explanation: layouts.Explanation, placement: layouts.Placement) -> str:
    silicon: bool = evidence.level is layouts.Level.SILICON
    return f"{silicon} {explanation} {placement}"


def by_groups(x: NDArray[np.float32]) -> NDArray[Any]:
    kind: scaling.ScaleKind = scaling.scale_kind("e8m0")
    name: scaling.ScaleKindName = "f32_power"
    quotient: scaling.Quotient = "divide"
    rule: scaling.NanRule = "ignored"
    grid: tuple[int, int] = scaling.scale_grid((5, 300))
    made: scaling.Quantized = scaling.quantize(x, scale=name, quotient=quotient, nan=rule)
    factors: NDArray[np.float32] = made.factors
    assert kind in scaling.SCALE_KINDS
    assert made.scales.shape == grid
    return scaling.dequantize(made.codes, scaling.spread(factors, (5, 3)), made.format, group=(1, 100))


def by_blocks(x: NDArray[np.float32]) -> NDArray[Any]:
    row: scaling.BlockFormat = scaling.block_format("mxfp4")
    recipe: scaling.Recipe = scaling.recipe_named("floor", row)
    assert row in scaling.BLOCK_FORMATS
    assert recipe in scaling.RECIPES
    assert isinstance(recipe, scaling.MxRecipe)
    assert isinstance(scaling.recipes_of("nvfp4")[0], scaling.Nvfp4Recipe)
    mixed: NDArray[np.float64] = scaling.random_hadamard(x)
    assert mixed.shape == x.shape
    made: scaling.Blocks = refsim.quantize(x, row, recipe=recipe)
    values: NDArray[np.float32] = made.dequantize()
    packed: NDArray[Any] = made.packed
    assert values.shape == x.shape
    return packed


def why(a: NDArray[np.uint8], d: NDArray[np.float32]) -> list[causes.Cause]:
    operands: causes.ProductOperands = causes.ProductOperands(a=a, b=a, a_format="e4m3", b_format="e4m3", unit="wgmma")
    found: causes.DiffExplanation = causes.explain_diff(d, operands=operands, seconds=1.0, at=(0, 0))
    sums: list[int] = [stage.code_a for stage in found.stages if isinstance(stage, causes.SumsSoFar)]
    named: tuple[causes.Named, ...] = found.named
    scales: causes.QuantizedFrom = causes.QuantizedFrom(x=d, to="mxfp8", recipe="floor")
    rows: causes.RowOperands = causes.RowOperands(function="rms_norm", x=d, weight=d[0], eps=1e-5, special="exact")
    heads: causes.AttentionOperands = causes.AttentionOperands(q=a, k=a, v=a, format="e4m3", causal=True)
    assert rows.function or heads.causal
    whole: causes.IntegerOperands = causes.IntegerOperands(a=a.astype(np.int8), b=a.astype(np.int8), a_zero=3)
    assert rows.function
    assert whole.a_zero
    narrow: causes.WeightOperands = causes.WeightOperands(a=d, a_format="bf16", b=a, b_format="u4", b_scale=d, b_zero=8)
    assert narrow.b_zero
    assert sums
    assert found.outcome is causes.DiffOutcome.EXPLAINED or scales.to
    return [cause for each in named for cause in each.causes if cause.family is causes.Family.SPLIT_K]


def oracle(x: NDArray[np.uint16], w: NDArray[np.uint16], w8: NDArray[np.uint8], s: NDArray[np.uint16]) -> float:
    chains: oracles.ReductionName = "mirage_4_warps"
    decoder: oracles.WeightDecoder = "marlin"
    y: NDArray[np.uint16] = oracles.linear(x, w, reduction=chains)
    z: NDArray[np.uint16] = oracles.linear_fp8_weight(x, w8, s, decode=decoder)
    largest: np.uint32 = oracles.fp8_quantize.amax(y, "bf16")
    codes, scale = oracles.fp8_quantize.quantize(z, format="bf16", to="e4m3", amax_bits=int(largest))
    assert oracles.fp8_quantize.EPS
    wide = oracles.fp8_quantize.dequantize(codes, scale, "e4m3", "f32")
    promotion: oracles.Promotion = "a_then_b"
    factors = np.ones((len(codes), 1), np.float32)
    d: NDArray[Any] = oracles.fp8_gemm_1d2d(codes, codes, factors, factors, promotion=promotion, splits=1)
    free: NDArray[np.bool_] = oracles.open_rows([0, -1])
    scaling: oracles.CublasltScaling = "tensor"
    accumulation: oracles.CublasltAccumulation = "slow"
    row: oracles.CublasltRegion = oracles.CUBLASLT_REGIONS[0]
    ranges: int | None = row.splits(64, 64, 16, scaling)
    e: NDArray[Any] = oracles.cublaslt_fp8(codes, codes, 1.0, 1.0, accumulation=accumulation, splits=ranges)
    upcast: oracles.BlockScaledUpcast = "byte_shift"
    f: NDArray[Any] = oracles.block_scaled_matmul(
        codes, codes, w8, w8, a_format="e4m3", b_format="e4m3", target="sm_90a", unit="mma.sync", upcast=upcast
    )
    g: NDArray[Any] = oracles.softmax(x, 1.0, format="bf16")
    h: NDArray[Any] = oracles.rms_norm(x, x[0], gate=x, format="bf16")
    attended: oracles.Attention = oracles.attention(x[None], x[None], x[None], 0.125, causal=True)
    sizes = wide.size, d.size, e.size, f.size, g.size, h.size, attended.o.size, free.size
    return float(sum(sizes))


def simulated(text: str, x: NDArray[np.uint8]) -> ptx.Trace:
    program: ptx.Program = ptx.load(text, ptx.DEFAULT_TARGET)
    grid: ptx.Extents = (2, 1)
    watched = ptx.AddressWatch(ptx.stretch_named(program, "scale", "0x7f00", 0))
    policy: ptx.SchedulePolicy = "lazy"
    arithmetic: ptx.Arithmetic = "exact"
    warp = ptx.WarpTrace(program.code("scale"), warp=0)
    log = ptx.EventLog(("transfer", "mbarrier_pass"), most=100)
    trace: ptx.Trace = program.launch(
        "scale",
        grid,
        32,
        [x, np.uint32(x.size)],
        memory=ptx.GlobalMemory(),
        policy=policy if x.size else ptx.POLICIES[0],
        arithmetic=arithmetic if x.size else ptx.ARITHMETICS[0],
        checks=ptx.Checks(),
        observer=warp,
        watching=watched,
        events=log,
    )
    first: ptx.RecordedEvent | None = next(iter(trace.events), None)
    lines = [(each.verb, each.kind, each.what, each.blocks, each.warps, each.lanes) for each in log.events]
    uses: tuple[ptx.BankUse, ...] = trace.banks
    crowds: list[ptx.Crowd | None] = [use.worst for use in uses]
    contractions: tuple[ptx.Contraction, ...] = trace.contractions
    checks: tuple[ptx.Check, ...] = ptx.CHECKS
    assert ptx.STOPS
    assert len(lines) + log.left_out >= trace.events_left_out or first is None
    return trace if not (crowds or contractions) and checks else program.launch("scale", grid, 32, [x, np.uint32(1)])


def is_the_kernels(error: refsim.RefsimError) -> bool:
    return ptx.is_fault(error) and error.code in ptx.FAULT_CODES


def compared(got: NDArray[np.uint8], want: NDArray[np.uint8], layout: compare.Layout, owner: compare.Owner) -> str:
    policy: compare.NanPolicy = "any-payload"
    found: compare.Mismatch = compare.bits(got, want, "e4m3", layout, owner, nan=policy)
    elements: tuple[compare.Element | None, ...] = (found.first, found.worst)
    names: tuple[str, ...] = compare.explained(got, want, {"a decoder that flushes": want})
    exact: compare.Mismatch = compare.within_bound(got, np.ones(3), np.zeros(3), "e4m3", name="y")
    return f"{found} {elements} {names} {exact}"


def kept(path: Path, codes: Codes) -> int:
    files.save(path, codes, "e4m3")
    one: files.Stored = files.load(path, max_bytes=files.DEFAULT_MAX_BYTES)
    files.save_all(path, {"w": (one.codes, one.format)})
    every: dict[str, files.Stored] = files.load_all(path)
    return len(every)


def my_campaign(recipe: type, case: Path) -> testing.Verdict:
    card: device.Device = device.open("sim")

    def run(launcher: testing.Launcher, problem: Any) -> dict[str, NDArray[Any]]:
        seen: testing.Findings = launcher.findings()
        print(seen.inexact, seen.assumed, card.probing().is_simulated)
        launcher.call(launcher.output(4, np.uint8, name="y"))
        return {"y": np.zeros(problem.size, np.uint8)}

    kernel = testing.Kernel(
        name="mine",
        oracle=lambda problem: {"y": np.zeros(problem.size, np.uint8)},
        problem=testing.strategies.sizes(),
        run=run,
        outputs={"y": "e4m3"},
        recipe=recipe,
        promise=testing.Promise.BITWISE,
        source="template <int N> __global__ void k(int* x) { *x = N; }",
        entries=("k<4>",),
        defines={"WIDTH": 8, "FAST": None},
        include=(case.parent,),
        compiler="nvrtc",
        computes=testing.steps.fused(testing.steps.load("x"), testing.steps.store("y")),
        products={"gemm": testing.KernelProduct(lambda a, b: recipe(len(a)), "y", "bf16", "bf16", "e4m3", n=8)},
    )
    lines = [
        testing.kinds.scaled_product("a", "b", promotion="a_then_b", also={"gap": np.zeros(3, np.uint8)}),
        testing.kinds.block_scaled_product(scale_format="ue4m3", a_format="e2m1", b_format="e2m1"),
        testing.kinds.linear("x", "w", lambda problem: problem.bias),
        testing.kinds.integer_product("a", "b", a_zero=3),
        testing.kinds.softmax(x_format="bf16"),
        testing.kinds.rms_norm("x", "w", 1e-5),
        testing.kinds.attention(format="bf16", causal=True),
        testing.kinds.quantizer("x", "nvfp4", layout="nvidia_128x4"),
    ]
    assert [replace(kernel, computes=each) for each in lines]
    open_bits = testing.Promise.BOUNDED(because="one rounding")
    said = testing.Bounded(np.ones(3), np.zeros(3))
    assert open_bits != kernel.promise, said
    free: testing.Unordered = testing.Unordered(np.ones(3), 0)
    assert testing.Promise.SET() != kernel.promise, (free, testing.definitions)
    code: kernels.KernelCode = kernel.code
    with card.launcher(code, count_banks=True) as launched:
        print(launched.target, code.label)
    found: tuple[testing.Kernel, ...] = testing.find_kernels([case])
    replayed: testing.Verdict = testing.replay_case(case, card, testing.kernel_named("mine"))
    testing.assert_bits_equal(np.zeros(3, np.uint8), np.zeros(3, np.uint8), "e4m3")
    why_not: dict[str, causes.DiffExplanation] = testing.explain_problem(kernel, None, card, seconds=1.0)
    assert why_not
    return testing.run_campaign(found[0] if found else kernel, card, cases=3) if str(replayed) else replayed


def of_others(function: object, launcher: testing.Launcher, x: kernels.Buffer) -> list[str]:
    triton: adapters.TritonKernel = adapters.from_triton(function, {"x": "*fp32"}, {"N": 64}, "sm_80", num_warps=4)
    triton.launch(launcher, (1, 2), x)
    descriptor: adapters.TritonDescriptor = adapters.TritonDescriptor(x, (4, 16), padding="nan")
    triton.launch(launcher, (1, 2), descriptor)
    numba: adapters.NumbaKernel = adapters.from_numba(function, "void(float32[::1])", "sm_80", fastmath=True)
    numba.launch(launcher, 1, 32, x, shared_bytes=16)
    cupy: adapters.CupyKernel = adapters.from_cupy("__global__ void k(float* x) {}", "k", options=("-DX=1",))
    cupy.launch(launcher, (1,), (32,), (x,), shared_mem=16)
    cute: adapters.CuteKernel = adapters.from_cute(function, target="sm_90a")
    cute.launch(launcher, 1, 32, (x, 4), entry=cute.entry)
    by_value: kernels.Struct = adapters.struct(adapters.parameter_dtype(cute.ptx, cute.entry, 0), at_0=x)
    host: adapters.HostLibrary = adapters.HostLibrary(Path("libhost.so"))
    launcher.launch("k", 1, 32, [by_value, host.fill(launcher, "make", 64, x)])
    made: layouts.TensorMap = layouts.tensor_map("uint8", (64, 4), (16, 4), address=x.address)
    encoded: kernels.Struct = launcher.encode(made)
    launcher.launch("k", 1, 32, [made, encoded, x])
    return [triton.ptx, numba.ptx, cupy.code.label]


def my_laws(kernel: testing.Kernel, problem: object) -> testing.laws.Observation:
    card = device.open("sim:lazy", "sm_90a")
    try:
        testing.laws.agrees_with_oracle(kernel, problem, card)
    except (testing.BitsDiffer, testing.PromiseNotKept) as difference:
        print(difference)
    testing.laws.inputs_unchanged(kernel, problem, card)
    testing.laws.deterministic(kernel, problem, card)
    return testing.laws.observe(kernel, problem, card)


def my_problems() -> list[SearchStrategy[Any]]:
    tensor: SearchStrategy[testing.recipes.Tensor] = testing.strategies.tensors(["f32"])
    launch: SearchStrategy[testing.recipes.Launch] = testing.strategies.launches()
    matrix: SearchStrategy[testing.matrices.Values] = testing.matrices.values("bf16", fills=("gaussian",))
    return [tensor, launch, matrix, testing.strategies.bit_patterns("e4m3"), testing.strategies.misalignments()]


def my_recipes(codes: NDArray[np.uint8]) -> list[object]:
    tensors: tuple[testing.recipes.Tensor, ...] = testing.recipes.corpus_tensors("bf16", large=False)
    record: Any = testing.recipes.to_json(tensors[0])
    again: Any = testing.recipes.from_json(testing.recipes.Tensor, record)
    testing.recipes.in_range("n", 3, 0, testing.recipes.MAX_MISALIGN)
    testing.recipes.of_type("n", 3, int)
    testing.recipes.one_of("fill", "zeros", testing.matrices.MATRIX_FILLS)
    testing.recipes.check_patches(())
    sizes: tuple[int, ...] = (*testing.recipes.EDGE_SIZES, testing.recipes.LARGE, testing.recipes.MAX_ELEMENTS)
    blocks: int = testing.recipes.MAX_BLOCKS
    launch: testing.recipes.Launch = testing.recipes.COVERING
    given: testing.matrices.Given = testing.matrices.Given.of(codes)
    rows: SearchStrategy[int] = testing.matrices.extents(64, 4096)
    fills: tuple[str, ...] = testing.matrices.DRAWN_FILLS
    return [testing.recipes.spelled(tensors[0]), again, sizes, blocks, launch, given, rows, fills]


def of_outputs(outputs: kernels.Outputs) -> list[str]:
    return sorted(outputs)
