"""Seven small kernels, declared as a user declares one: what each is given, how it is launched, what it must write."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from hypothesis import strategies as st

from refsim import decode, encode, numerics, pack
from refsim.kernels import Kernel, Launcher, Outputs
from refsim.layouts import scale_layout
from refsim.testing.matrices import Values
from refsim.testing.recipes import in_range

SOURCES = Path(__file__).parent / "kernels"
F32 = np.float32
DEPTH, PAGE = 64, 16  # of a head; tokens of a page of the cache
AWQ_GROUP = 32
SHUFFLED = scale_layout("nvidia_128x4")
SEEDS = st.integers(0, 1000)
FIRST, SECOND, MANY_MAGNITUDES = Values("gaussian", 1), Values("gaussian", 2), Values("log-uniform", 1)


def floats(fill: Values, rows: int, columns: int) -> np.ndarray:
    return fill.codes("f32", rows, columns).view(F32)


@dataclass(frozen=True)
class RopeCache:
    """Keys of `pages * 16` tokens, which fill the pages in an order that `seed` shuffles."""

    pages: int
    heads: int = 2
    seed: int = 0

    def __post_init__(self) -> None:
        in_range("pages", self.pages, 1, 8)
        in_range("heads", self.heads, 1, 8)

    @property
    def tokens(self) -> int:
        return self.pages * PAGE

    def operands(self) -> tuple[np.ndarray, ...]:
        """Keys (codes of bf16), cosines, sines, slots, and the factor of each head."""
        generator = np.random.default_rng(self.seed)
        keys = Values("gaussian", self.seed).codes("bf16", self.tokens * self.heads, DEPTH)
        angles = generator.uniform(0, 6, (self.tokens, DEPTH // 2))
        slots = generator.permutation(self.tokens).astype(np.int32)
        factors = generator.uniform(2, 60, self.heads).astype(F32)
        return keys, np.cos(angles).astype(F32), np.sin(angles).astype(F32), slots, factors


def run_rope_cache(launcher: Launcher, problem: RopeCache) -> Outputs:
    names = ("keys", "cosines", "sines", "slots", "inverse_scales")
    given = [launcher.upload(each, name=name) for each, name in zip(problem.operands(), names, strict=True)]
    size = problem.tokens * problem.heads * DEPTH
    cache, rotated = launcher.output(size, np.uint8, name="cache"), launcher.output(size, np.uint16, name="rotated")
    arguments = [*given, cache, rotated, np.uint32(problem.heads)]
    launcher.launch("rope_cache", (problem.tokens,), (32 * problem.heads,), arguments)
    return {
        "cache": launcher.read(cache).reshape(problem.pages, problem.heads, PAGE, DEPTH),
        "rotated": launcher.read(rotated).reshape(problem.tokens, problem.heads, DEPTH),
    }


def rope_cache(problem: RopeCache) -> Outputs:
    """Each half by its own two products and one sum, all rounded to float32."""
    codes, cosines, sines, slots, factors = problem.operands()
    keys = decode(codes, "bf16", dtype=F32).reshape(problem.tokens, problem.heads, DEPTH)
    x, y = keys[..., : DEPTH // 2], keys[..., DEPTH // 2 :]
    c, s = cosines[:, None], sines[:, None]
    turned = np.concatenate([x * c - y * s, y * c + x * s], -1)
    rows = np.empty_like(turned)
    rows[slots] = turned * factors[:, None]
    paged = rows.reshape(problem.pages, PAGE, problem.heads, DEPTH).swapaxes(1, 2)
    return {"cache": encode(paged, "e4m3"), "rotated": encode(turned, "bf16")}


@dataclass(frozen=True)
class AwqWeights:
    """Weights (rows, columns) of four bits; a zero point and a scale for each column of 32 rows."""

    rows: int
    columns: int
    seed: int = 0

    def __post_init__(self) -> None:
        in_range("rows", self.rows, AWQ_GROUP, 256)
        in_range("columns", self.columns, 8, 256)
        in_range("groups of rows", self.rows % AWQ_GROUP, 0, 0)
        in_range("columns of whole words", self.columns % 8, 0, 0)

    def operands(self) -> tuple[np.ndarray, ...]:
        generator = np.random.default_rng(self.seed)
        groups = self.rows // AWQ_GROUP
        q = generator.integers(0, 16, (self.rows, self.columns), dtype=np.uint32)
        zeros = generator.integers(4, 12, (groups, self.columns), dtype=np.uint32)
        scales = generator.uniform(0.001, 0.02, (groups, self.columns)).astype(np.float16)
        return q, zeros, scales


def awq_words(codes: np.ndarray) -> np.ndarray:
    """Eight columns a word, in the order of AWQ."""
    eights = codes.reshape(len(codes), -1, 8)[..., [0, 2, 4, 6, 1, 3, 5, 7]]
    return np.asarray((eights << (4 * np.arange(8, dtype=np.uint32))).sum(-1, dtype=np.uint32))


def run_awq(launcher: Launcher, problem: AwqWeights) -> Outputs:
    q, zeros, scales = problem.operands()
    given = [("words", awq_words(q)), ("zeros", awq_words(zeros)), ("scales", scales.view(np.uint16))]
    w = launcher.output(problem.rows * problem.columns, np.uint16, name="w")
    arguments = [*(launcher.upload(each, name=name) for name, each in given), w]
    threads = problem.rows * problem.columns // 8
    extents = [np.uint32(problem.rows), np.uint32(problem.columns)]
    launcher.launch("awq_dequantize", (-(-threads // 128),), (128,), [*arguments, *extents])
    return {"w": launcher.read(w).reshape(problem.rows, problem.columns)}


def awq(problem: AwqWeights) -> Outputs:
    q, zeros, scales = problem.operands()
    steps = q.astype(np.int32) - np.repeat(zeros, AWQ_GROUP, 0).astype(np.int32)
    return {"w": (steps.astype(np.float16) * np.repeat(scales, AWQ_GROUP, 0)).view(np.uint16)}


@dataclass(frozen=True)
class HalfProduct:
    """A (m, k) and B (k, n) in half, whole tiles of 64 x 32 x 32."""

    m: int
    n: int
    k: int
    a: Values = FIRST
    b: Values = SECOND

    def __post_init__(self) -> None:
        for name, tile in (("m", 64), ("n", 32), ("k", 32)):
            in_range(name, getattr(self, name), tile, 512)
            in_range(f"{name} beyond whole tiles", getattr(self, name) % tile, 0, 0)


def run_matmul(launcher: Launcher, problem: HalfProduct) -> Outputs:
    a = launcher.upload(problem.a.codes("f16", problem.m, problem.k), name="a")
    b = launcher.upload(problem.b.codes("f16", problem.k, problem.n), name="b")
    d = launcher.output(problem.m * problem.n, np.uint16, name="d")
    arguments = [a, b, d, np.uint32(problem.n), np.uint32(problem.k)]
    launcher.launch("matmul_f16", (problem.n // 32, problem.m // 64), (128,), arguments)
    return {"d": launcher.read(d).reshape(problem.m, problem.n)}


def matmul(problem: HalfProduct, target: str) -> Outputs:
    a, b = problem.a.codes("f16", problem.m, problem.k), problem.b.codes("f16", problem.k, problem.n).T
    forms = {"a_format": "f16", "b_format": "f16", "d_format": "f32"}
    sums = numerics.mma(a, np.ascontiguousarray(b), None, unit="mma.sync", k=16, target=target, **forms)
    return {"d": encode(sums, "f16", overflow="inf")}


@dataclass(frozen=True)
class Int8Product:
    """A (m, k) and B (n, k) in int8, a zero point and a scale for each row of A, a scale for each row of B."""

    m: int
    n: int
    k: int
    seed: int = 0

    def __post_init__(self) -> None:
        for name, tile in (("m", 16), ("n", 32), ("k", 32)):
            in_range(name, getattr(self, name), tile, 512)
            in_range(f"{name} beyond whole tiles", getattr(self, name) % tile, 0, 0)

    def operands(self) -> tuple[np.ndarray, ...]:
        generator = np.random.default_rng(self.seed)
        a, b = (generator.integers(-128, 128, (rows, self.k), dtype=np.int8) for rows in (self.m, self.n))
        zero = generator.integers(-20, 20, self.m, dtype=np.int32)
        scales = (generator.uniform(0.001, 0.1, rows).astype(F32) for rows in (self.m, self.n))
        return (a, b, zero, b.sum(1, dtype=np.int32), *scales)


def run_int8(launcher: Launcher, problem: Int8Product) -> Outputs:
    names = ("a", "b", "zero", "total", "scale_a", "scale_b")
    given = [launcher.upload(each, name=name) for each, name in zip(problem.operands(), names, strict=True)]
    d = launcher.output(problem.m * problem.n, np.uint16, name="d")
    extents = [np.uint32(problem.n), np.uint32(problem.k)]
    launcher.launch("int8_matmul", (problem.n // 32, problem.m // 16), (128,), [*given, d, *extents])
    return {"d": launcher.read(d).reshape(problem.m, problem.n)}


def int8(problem: Int8Product) -> Outputs:
    a, b, zero, total, scale_a, scale_b = problem.operands()
    sums = a.astype(np.int32) @ b.astype(np.int32).T - zero[:, None] * total
    return {"d": encode(sums.astype(F32) * scale_a[:, None] * scale_b, "bf16")}


@dataclass(frozen=True)
class Nvfp4:
    """Codes of E2M1 (rows, columns) with a UE4M3 scale for each 16 columns and one scale of the tensor."""

    rows: int
    columns: int
    seed: int = 0

    def __post_init__(self) -> None:
        in_range("rows", self.rows, 1, 512)
        in_range("columns", self.columns, 16, 512)
        in_range("columns of whole blocks", self.columns % 16, 0, 0)

    def operands(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        generator = np.random.default_rng(self.seed)
        codes = generator.integers(0, 16, (self.rows, self.columns), dtype=np.uint8)
        scales = generator.integers(8, 0x7E, (self.rows, self.columns // 16), dtype=np.uint8)
        return codes, scales, generator.uniform(0.001, 0.1, 1).astype(F32)


def run_nvfp4(launcher: Launcher, problem: Nvfp4) -> Outputs:
    codes, scales, tensor = problem.operands()
    given = [("q", pack(codes, "e2m1")), ("scales", SHUFFLED.shuffle(scales)), ("tensor", tensor)]
    y = launcher.output(codes.size, np.uint16, name="y")
    arguments = [*(launcher.upload(each, name=name) for name, each in given), y]
    extents = [np.uint32(problem.rows), np.uint32(problem.columns)]
    launcher.launch("nvfp4_dequantize", (-(-scales.size // 128),), (128,), [*arguments, *extents])
    return {"y": launcher.read(y).reshape(problem.rows, problem.columns)}


def nvfp4(problem: Nvfp4) -> Outputs:
    codes, scales, tensor = problem.operands()
    factors = decode(scales, "ue4m3", dtype=F32) * tensor[0]
    return {"y": encode(decode(codes, "e2m1", dtype=F32) * np.repeat(factors, 16, 1), "bf16")}


@dataclass(frozen=True)
class ScaleTiles:
    """E8M0 codes (rows, blocks)."""

    rows: int
    blocks: int
    seed: int = 0

    def __post_init__(self) -> None:
        in_range("rows", self.rows, 1, 512)
        in_range("blocks", self.blocks, 1, 64)

    def scales(self) -> np.ndarray:
        generator = np.random.default_rng(self.seed)
        return generator.integers(100, 150, (self.rows, self.blocks), dtype=np.uint8)


def run_tiles(launcher: Launcher, problem: ScaleTiles) -> Outputs:
    scales = launcher.upload(problem.scales(), name="scales")
    size = SHUFFLED.size_bytes((problem.rows, problem.blocks))
    packed = launcher.output(size, np.uint8, name="packed", misalign_bytes=0)
    extents = [np.uint32(problem.rows), np.uint32(problem.blocks)]
    launcher.launch("pack_scales", (-(-size // 512),), (128,), [scales, packed, *extents])
    return {"packed": launcher.read(packed)}


def tiles(problem: ScaleTiles) -> Outputs:
    return {"packed": SHUFFLED.shuffle(problem.scales())}


@dataclass(frozen=True)
class Turned:
    """X (rows, columns) in bf16, whole tiles of 32 x 32."""

    rows: int
    columns: int
    x: Values = MANY_MAGNITUDES

    def __post_init__(self) -> None:
        for name in ("rows", "columns"):
            in_range(name, getattr(self, name), 32, 256)
            in_range(f"{name} of whole tiles", getattr(self, name) % 32, 0, 0)


def run_turned(launcher: Launcher, problem: Turned) -> Outputs:
    rows, columns = problem.rows, problem.columns
    x = launcher.upload(problem.x.codes("bf16", rows, columns), name="x")
    q = launcher.output(rows * columns, np.uint8, name="q")
    scales = launcher.output(rows * columns // 32, np.uint8, name="scales")
    arguments = [x, q, scales, np.uint32(rows), np.uint32(columns)]
    launcher.launch("transpose_quantize", (columns // 32, rows // 32), (128,), arguments)
    return {"q": launcher.read(q).reshape(columns, rows), "scales": launcher.read(scales).reshape(columns, rows // 32)}


def turned(problem: Turned) -> Outputs:
    x = decode(problem.x.codes("bf16", problem.rows, problem.columns), "bf16", dtype=F32).T
    blocks = x.reshape(problem.columns, -1, 32)
    bits = (np.abs(blocks).max(-1) / F32(448)).view(np.uint32)
    scales = np.maximum((bits >> 23) + ((bits & 0x7FFFFF) != 0), 1)
    factors = ((254 - scales) << 23).astype(np.uint32).view(F32)
    return {"q": encode(blocks * factors[..., None], "e4m3").reshape(x.shape), "scales": scales.astype(np.uint8)}


WHOLE = {"m": st.sampled_from([64, 128]), "n": st.sampled_from([32, 64]), "k": st.sampled_from([32, 64, 96])}
ROWS, COLUMNS = st.sampled_from([32, 64]), st.sampled_from([32, 64, 96])
KERNELS = (
    Kernel(
        "rope_cache",
        summary="RoPE by halves, then E4M3 into a paged KV cache",
        file=SOURCES / "rope_cache.cu",
        recipe=RopeCache,
        problem=st.builds(RopeCache, st.integers(1, 3), st.integers(1, 3), SEEDS),
        corpus=(RopeCache(1, 1), RopeCache(4, 3), RopeCache(2, 2, 5), RopeCache(3, 2, 7)),
        run=run_rope_cache,
        oracle=rope_cache,
        outputs={"cache": "e4m3", "rotated": "bf16"},
    ),
    Kernel(
        "awq_dequantize",
        summary="four-bit weights in the order of AWQ to half",
        file=SOURCES / "awq_dequantize.cu",
        recipe=AwqWeights,
        problem=st.builds(AwqWeights, ROWS, COLUMNS, SEEDS),
        corpus=(AwqWeights(32, 8), AwqWeights(64, 48), AwqWeights(96, 32, 3)),
        run=run_awq,
        oracle=awq,
        outputs={"w": "f16"},
    ),
    Kernel(
        "matmul_f16",
        summary="a product in half whose B is row-major, by ldmatrix.trans",
        file=SOURCES / "matmul_f16.cu",
        recipe=HalfProduct,
        problem=st.builds(HalfProduct, **WHOLE),
        corpus=(HalfProduct(64, 32, 32), HalfProduct(64, 64, 96), HalfProduct(128, 32, 64)),
        run=run_matmul,
        oracle=matmul,
        outputs={"d": "f16"},
        per_target=True,
    ),
    Kernel(
        "int8_matmul",
        summary="a product in int8 with zero points and scales of rows",
        file=SOURCES / "int8_matmul.cu",
        recipe=Int8Product,
        problem=st.builds(Int8Product, st.sampled_from([16, 32]), WHOLE["n"], WHOLE["k"], SEEDS),
        corpus=(Int8Product(16, 32, 32), Int8Product(32, 64, 96, 1), Int8Product(48, 32, 64, 2)),
        run=run_int8,
        oracle=int8,
        outputs={"d": "bf16"},
    ),
    Kernel(
        "nvfp4_dequantize",
        summary="NVFP4 with shuffled scales to bf16",
        file=SOURCES / "nvfp4_dequantize.cu",
        recipe=Nvfp4,
        problem=st.builds(Nvfp4, st.integers(1, 140), st.sampled_from([16, 64, 96]), SEEDS),
        corpus=(Nvfp4(1, 16), Nvfp4(128, 128), Nvfp4(40, 80, 2), Nvfp4(130, 64, 3)),
        run=run_nvfp4,
        oracle=nvfp4,
        outputs={"y": "bf16"},
    ),
    Kernel(
        "pack_scales",
        summary="E8M0 scales into tiles of 128 x 4",
        file=SOURCES / "pack_scales.cu",
        recipe=ScaleTiles,
        problem=st.builds(ScaleTiles, st.integers(1, 300), st.integers(1, 20), SEEDS),
        corpus=(ScaleTiles(1, 1), ScaleTiles(256, 8), ScaleTiles(130, 6, 2), ScaleTiles(128, 12, 3)),
        run=run_tiles,
        oracle=tiles,
        outputs={"packed": "e8m0"},
    ),
    Kernel(
        "transpose_quantize",
        summary="the transpose of X as MXFP8 with scales along its rows",
        file=SOURCES / "transpose_quantize.cu",
        recipe=Turned,
        problem=st.builds(Turned, ROWS, COLUMNS),
        corpus=(Turned(32, 32), Turned(64, 96), Turned(96, 64, Values("gaussian", 4))),
        run=run_turned,
        oracle=turned,
        outputs={"q": "e4m3", "scales": "e8m0"},
    ),
)
