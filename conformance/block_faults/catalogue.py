"""The field's bug classes of block scaling, with threads that show them: each is a mutant of a kernel, or says why it is none."""

from dataclasses import dataclass


@dataclass(frozen=True)
class FaultClass:
    """One class: `elsewhere` says what holds the part of it that no mutant of these kernels can have."""

    id: str
    says: str
    threads: str
    elsewhere: str = ""


CLASSES = (
    FaultClass(
        "padding poison",
        "pads of the scales are uninitialised, or read as NaN",
        "TransformerEngine#3070, #1912; sglang#31791; pytorch#153254; vllm#49784; rocm-libraries#12232",
    ),
    FaultClass(
        "another shape",
        "padding or an offset computed from another shape",
        "vllm#35497, #46880; flashinfer#3206; TransformerEngine#3518, #3519",
    ),
    FaultClass("interleave", "the interleave is skipped, halved or done twice", "flashinfer#4087, #4093; modular#6600"),
    FaultClass("scales not written", "the last scales are never stored", "flashinfer#5053"),
    FaultClass(
        "scale and elements part",
        "the stored scale is not the one the elements were made with",
        "transformers#47030; sglang#39193, #39482; DeepGEMM#403; vllm#53680; PaddleFleet#1474",
        "float32 scales read as packed UE8M0: a buffer of words is refused by `scales check` and by `ScaleLayout` "
        "(`bad-dtype`), and these kernels take bytes alone",
    ),
    FaultClass(
        "scale rule",
        "another rounding of the scale, or of ties",
        "ao#2035, #4725; vllm#43557; mlx#4353; rMLX#463; ml_dtypes#298; aiter#3212",
    ),
    FaultClass(
        "overflow",
        "NaN for the largest value, or from MAX on",
        "ml_dtypes#400, #260, #147; pytorch#178817, #160957; onnx#6220; oneDNN#3675; rocm-systems#8800",
    ),
    FaultClass("FN / FNUZ", "codes of the other FP8, a factor of two", "triton#10745, #10747, #10778; onnx#5764"),
    FaultClass("signed zero", "zeros lose their sign", "llm-scaler#569; the references of TE, ModelOpt and DeepGEMM"),
    FaultClass(
        "E8M0 0 / 255",
        "the ends of E8M0 are decoded as numbers, flushed or wrapped",
        "triton#11624, #11737; vllm#46676; pytorch#125557",
        "a tensor core that reads E8M0 decodes by itself: what can be edited is the product for sm_90, and the quantiser",
    ),
    FaultClass(
        "double rounding",
        "a detour through half precision",
        "triton#10846, #2583, #11611; oneDNN#2361; flashinfer#5128, #4167",
    ),
    FaultClass(
        "zero block",
        "0 / 0, or a scale for nothing",
        "Model-Optimizer#1397, #1898, #381; flashinfer#3448; auto-round#1909",
    ),
    FaultClass(
        "factor inverted, amax signed",
        "S for 1 / S, the largest for the largest magnitude",
        "modular#6600; vllm#20578; flashinfer#5173",
    ),
    FaultClass(
        "reciprocal", "a product with a reciprocal where the rule divides", "flashinfer#3387; miles#1054, #1261"
    ),
    FaultClass(
        "nibble order",
        "two elements of a byte change places, or halves of a block are packed together",
        "imp#567; comfy-kitchen#41; Quark#30; 1bit-MONSTER#572, #1873",
    ),
    FaultClass(
        "K tail",
        "the last block of K is dropped, or a step takes the scale of another",
        "FBGEMM#6159, #6160; sglang#39637, #8648; compressed-tensors#547; TensorRT-Model-Connect#1115",
        "K that no blocks fill is refused by `refsim.quantize`, the oracle and the problems of the products: the quantiser "
        "kernels alone take it",
    ),
    FaultClass("transposed grid", "tiles of scales, or blocks, in the other order", "the layouts' own page"),
    FaultClass(
        "int32 offset",
        "offsets of large tensors wrap",
        "pytorch and vllm, tensors beyond 2^31 bytes",
        "tried with 16 bits, which a small problem exceeds: 32 bits need operands of 4 GiB",
    ),
    FaultClass("another chip", "scales in the order of another chip or library", "flashinfer#4087; aiter, cdna4"),
    FaultClass("1D / 2D", "one scale for rows that have one each", "TransformerEngine NVFP4 weights of 16 x 16"),
)
NOT_HERE = (
    (
        "blocks of another width (VS)",
        "a buffer of the wrong number of scales: `bad-shape` names the formats that it fits",
    ),
    (
        "random bits of stochastic rounding",
        "`refsim.quantize(random=)` is held to its definition; no kernel here rounds so",
    ),
    ("experts' offsets of scales", "a grouped product's: `gpu/gemm_1d2d_experts.py` has those mutants"),
)
BY_ID = {row.id: row for row in CLASSES}
