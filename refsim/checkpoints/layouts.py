"""Layouts of quantized weights in public checkpoints: an entry each, told by names, types and shapes of tensors."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from refsim.errors import unknown
from refsim.files.gguf import GGUF_BLOCKS
from refsim.formats import E2M1, E2M3, E4M3, Format
from refsim.render.cards import Card, Facts
from refsim.sources import (
    AUTO_AWQ,
    BITSANDBYTES,
    COMPRESSED_TENSORS,
    DEEPSEEK,
    GGUF,
    GPT_OSS,
    GPTQ,
    MODELOPT,
    REFSIM,
    TORCHAO,
    Source,
)


@dataclass(frozen=True)
class WeightPart:
    """A tensor that a weight consists of: how its key ends, and the types that it may have in the file."""

    ends: tuple[str, ...]
    dtypes: tuple[str, ...]
    needed: bool = True


@dataclass(frozen=True, repr=False, eq=False)
class CheckpointLayout(Card):
    """How a weight is stored: value = (code - zero) * scale, times or divided by a factor of the tensor.

    `packing` is plain (a code an element), low (a stream of bits along a row, the first code in the low bits), awq (as
    low, eight codes of a word in the order 0 2 4 6 1 3 5 7), down (a stream along a column), high (the first code of a
    byte in its high half), or blocks (codes and scales in one tensor). `scaling` says what shares a scale: tensor,
    channel (a row), groups (`width` neighbors along a row, 0 for what shapes or config.json say), blocks (tiles of
    128 x 128, or what config.json says), columns (neighbors along a column), flat (neighbors in memory) or turned (as
    groups, scales lie (groups, rows), codes are in two's complement, value = code * scale + zero).
    """

    name: str
    source: Source
    codes: WeightPart
    parts: Mapping[str, WeightPart]
    element: Format | None = None
    packing: str = "plain"
    scaling: str = "groups"
    width: int = 0
    divides: bool = False
    zero: int = 0
    """What is added to a stored zero point, or subtracted from codes that have none."""
    methods: tuple[str, ...] = ()
    """What quant_method, format or quant_algo of config.json says for it."""
    becomes: str = ""
    summary: str = ""
    types: tuple[str, ...] = ()
    """Types of torchao's metadata."""
    made: str = ""
    """How refsim writes it: a block format and the usual recipe, or rows x columns that share a scale, 0 for all."""

    def __str__(self) -> str:
        return self.name

    def _repr_summary(self) -> str:
        return f"{self.name}: {self.summary}"

    def _facts(self) -> Facts:
        yield "codes", f"{' or '.join(self.codes.ends)} in {' or '.join(self.codes.dtypes)}"
        for role, part in self.parts.items():
            yield role, f"{' or '.join(part.ends)} in {' or '.join(part.dtypes)}{'' if part.needed else ', if any'}"
        yield "source", self.source


TYPE_WORDS = {"FLOAT": ("F32", "BF16", "F16"), "FP8": ("F8_E4M3", "F8_E5M2"), "POWER": ("U8", "F8_E8M0")}
"""Words for several types in the table. POWER is E8M0, which many libraries store as U8."""


def _part(ends: str, types: str, *, needed: bool = True) -> WeightPart:
    """Return a part of the table: its ends and its types, each between bars."""
    kinds = tuple(each for word in types.split("|") for each in TYPE_WORDS.get(word, (word,)))
    return WeightPart(tuple(ends.split("|")), kinds, needed)


def _row(
    name: str, source: Source, codes: str, parts: str, summary: str, *, methods: str = "", **more: Any
) -> CheckpointLayout:
    """Return an entry. `codes` is "end type", `parts` are "role end type" between commas; role? may be missing."""
    fields = {}
    for role, ends, types in (each.split() for each in parts.split(",") if each):
        fields[role.rstrip("?").replace("_", " ")] = _part(ends, types, needed=not role.endswith("?"))
    more.setdefault("becomes", ".weight")
    return CheckpointLayout(
        name, source, _part(*codes.split()), fields, methods=tuple(methods.split()), summary=summary, **more
    )


_DS, _MO, _CT = DEEPSEEK["V4, inference"], MODELOPT["export"], COMPRESSED_TENSORS["compressors"]
_AO, _BNB = TORCHAO["prototype/safetensors"], BITSANDBYTES["functional, QuantState"]
_GPTQ = GPTQ["nn_modules/qlinear"]
_IN = ",input_scale? .input_scale|.input_global_scale|.activation_scale FLOAT"
_FP8 = "fp8 float-quantized naive-quantized fbgemm_fp8 modelopt FP8"
_AO_PARTS = "scales ._weight_scale {},zeros? ._weight_zero_point I8|I32|FLOAT"
_GPTQ_PARTS = "scales .scales FLOAT,zeros .qzeros I32,groups? .g_idx I32"
_BNB_PARTS = (
    "scales .weight.absmax F32|U8,values .weight.quant_map F32,nested_scales? .weight.nested_absmax F32,"
    "nested_values? .weight.nested_quant_map F32,state .weight.quant_state.bitsandbytes__{} U8"
)
_E2M1: dict[str, Any] = {"element": E2M1, "packing": "low"}
# fmt: off
GGUF_READ = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "MXFP4", "IQ4_NL", "IQ4_XS",
             "TQ1_0", "TQ2_0", "NVFP4")
CHECKPOINT_LAYOUTS = (
    CheckpointLayout(
        "refsim", REFSIM["refsim quantize"], WeightPart(("",), ()), {},
        summary="blocks; the metadata names format and recipe",
    ),
    _row("deepseek-fp8", DEEPSEEK["V3, README_WEIGHTS"], ".weight FP8", "scales .weight_scale_inv F32|BF16" + _IN,
         "FP8, a scale for 128 x 128, multiplied (DeepSeek-V3, Qwen3)", element=E4M3, scaling="blocks", methods=_FP8,
         made="128x128"),
    _row("deepseek-v4-fp8", _DS, ".weight FP8", "scales .scale F8_E8M0|F32",
         "FP8, a power of two for 128 x 128", element=E4M3, scaling="blocks", methods=_FP8, made="128x128"),
    _row("deepseek-v4-fp4", _DS, ".weight I8", "scales .scale|.weight_scale_inv|.weight_scale F8_E8M0",
         "two FP4 a byte, a power of two for 32", width=32, methods="fp8", made="mxfp4", **_E2M1),
    _row("gpt-oss", GPT_OSS["torch/weights"], "_blocks|.blocks U8", "scales _scales|.scales POWER",
         "MXFP4, the 16 bytes of 32 values in a dimension of their own", width=32, methods="mxfp4", becomes="",
         made="mxfp4", **_E2M1),
    _row("modelopt-nvfp4", _MO, ".weight U8", "scales .weight_scale F8_E4M3,factor .weight_scale_2 F32" + _IN,
         "two FP4 a byte, FP8 for 16, times weight_scale_2", width=16, methods="modelopt modelopt_fp4 NVFP4",
         made="nvfp4 modelopt", **_E2M1),
    _row("modelopt-mxfp4", _MO, ".weight U8", "scales .weight_scale POWER" + _IN,
         "two FP4 a byte, a power of two for 32 (ModelOpt, Quark)", width=32, methods="modelopt MXFP4 quark",
         made="mxfp4", **_E2M1),
    _row("fp8-tensor", _MO, ".weight FP8", "scales .weight_scale|.weight_scale_inv FLOAT" + _IN,
         "FP8, one scale, multiplied", element=E4M3, scaling="tensor", methods=_FP8, made="0x0"),
    _row("fp8-channel", _CT, ".weight FP8", "scales .weight_scale FLOAT" + _IN,
         "FP8, a scale for each row, multiplied", element=E4M3, scaling="channel", methods=_FP8, made="1x0"),
    _row("fp8-block", _CT, ".weight FP8", "scales .weight_scale FLOAT" + _IN,
         "FP8, a scale for 128 x 128, multiplied", element=E4M3, scaling="blocks", methods=_FP8, made="128x128"),
    _row("modelopt-mxfp8", _MO, ".weight FP8", "scales .weight_scale POWER" + _IN,
         "FP8, a power of two for 32", element=E4M3, width=32, methods="modelopt MXFP8 mxfp8 mxfp8-quantized",
         made="mxfp8"),
    _row("ct-nvfp4", _CT, ".weight_packed U8", "scales .weight_scale F8_E4M3,factor .weight_global_scale F32" + _IN,
         "two FP4 a byte, FP8 for 16, divided by weight_global_scale", width=16, divides=True,
         methods="nvfp4-pack-quantized", made="nvfp4 compressed_tensors", **_E2M1),
    _row("ct-mxfp4", _CT, ".weight_packed U8", "scales .weight_scale POWER" + _IN,
         "two FP4 a byte, a power of two for 32", width=32, methods="mxfp4-pack-quantized", made="mxfp4", **_E2M1),
    _row("ct-mxfp6", _CT, ".weight_packed U8", "scales .weight_scale POWER" + _IN,
         "four FP6 in three bytes, a power of two for 32", element=E2M3, packing="low", width=32,
         methods="mxfp6-pack-quantized", made="mxfp6_e2m3"),
    _row("ct-int8", _CT, ".weight I8", "scales .weight_scale FLOAT,zeros? .weight_zero_point I8|FLOAT" + _IN,
         "INT8, a scale for a row, a group or the tensor", scaling="any",
         methods="int-quantized naive-quantized compressed-tensors"),
    _row("ct-packed", _CT, ".weight_packed I32",
         "scales .weight_scale FLOAT,shape .weight_shape I64|I32,zeros? .weight_zero_point I32,groups? .weight_g_idx I32"
         + _IN, "integers of 2 to 8 bits in words along a row, zeros along a column", packing="low", scaling="any",
         methods="pack-quantized"),
    _row("awq", AUTO_AWQ["awq/utils/packing_utils"], ".qweight I32", "scales .scales FLOAT,zeros .qzeros I32",
         "INT4 (K, N), eight columns of a word in the order 0 2 4 6 1 3 5 7", packing="awq", scaling="columns",
         methods="awq"),
    _row("gptq", _GPTQ, ".qweight I32", _GPTQ_PARTS,
         "integers (K, N) in words along a column; stored zeros are one too small", packing="down", scaling="columns",
         zero=1, methods="gptq"),
    _row("gptq_v2", _GPTQ, ".qweight I32", _GPTQ_PARTS,
         "integers (K, N) in words along a column; zeros as they are", packing="down", scaling="columns",
         methods="gptq_v2"),
    _row("torchao-fp8", _AO, "._weight_qdata FP8", _AO_PARTS.format("FLOAT"),
         "FP8, scale multiplied", element=E4M3, scaling="any", types=("Float8Tensor",), methods="torchao"),
    _row("torchao-mxfp8", _AO, "._weight_qdata FP8", _AO_PARTS.format("F8_E8M0|U8"),
         "FP8, a power of two for 32", element=E4M3, width=32, types=("MXTensor",), methods="torchao"),
    _row("torchao-mxfp4", _AO, "._weight_qdata U8", _AO_PARTS.format("F8_E8M0|U8"),
         "two FP4 a byte, a power of two for 32", width=32, types=("MXTensor",), methods="torchao", **_E2M1),
    _row("torchao-nvfp4", _AO, "._weight_qdata U8",
         _AO_PARTS.format("F8_E4M3") + ",factor? ._weight_per_tensor_scale F32",
         "two FP4 a byte, FP8 for 16, times per_tensor_scale", width=16, types=("NVFP4Tensor",), methods="torchao",
         **_E2M1),
    _row("torchao-int8", _AO, "._weight_qdata I8", _AO_PARTS.format("FLOAT"),
         "integers in bytes, a scale for a row or a group", scaling="any",
         types=("Int8Tensor", "IntxUnpackedToInt8Tensor"), methods="torchao"),
    _row("torchao-int4", _AO, "._weight_qdata I8|U8", "scales ._weight_scale FLOAT,zeros ._weight_zero_point FLOAT",
         "two INT4 a byte, code * scale + zero; scales and zeros lie (groups, rows)", packing="low", scaling="turned",
         types=("Int4Tensor",), methods="torchao"),
    *(
        _row(f"bnb-{kind}", _BNB, ".weight U8", _BNB_PARTS.format(kind),
             f"4 bits into a table of 16 values{of}, absmax for 64, which may be quantized too", packing="high",
             scaling="flat", methods="bitsandbytes")
        for kind, of in (("nf4", ""), ("fp4", ", which are not those of E2M1"))
    ),
    _row("bnb-int8", BITSANDBYTES["nn.modules, Linear8bitLt"], ".weight I8", "scales .SCB|.weight.SCB F32",
         "INT8, a row times SCB / 127", scaling="channel", methods="bitsandbytes"),
    *(
        _row(f"gguf-{name.lower()}", GGUF[f"ggml-quants, {name}"], f"| {name}", "",
             f"{GGUF_BLOCKS[name][0]} values in {GGUF_BLOCKS[name][1]} bytes", packing="blocks", becomes="")
        for name in GGUF_READ
    ),
)
# fmt: on
CONFIG_METHODS = frozenset(method.lower() for row in CHECKPOINT_LAYOUTS for method in row.methods)
SCALES_ALONE = _part(".k_scale|.v_scale|.q_scale|.kv_scale|.k_cache_scale|.v_cache_scale", "FLOAT")
"""Scales of an FP8 cache of keys and values: they belong to no weight. Source: vLLM, model_loader/weight_utils."""


def layout_named(name: str) -> CheckpointLayout:
    """Return the layout of a name. Raises RefsimError `unknown-layout`, with the nearest names."""
    found = next((row for row in CHECKPOINT_LAYOUTS if row.name == name.lower()), None)
    if found is None:
        raise unknown("layout", name, [row.name for row in CHECKPOINT_LAYOUTS])
    return found
