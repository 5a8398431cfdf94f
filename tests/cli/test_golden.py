"""Transcripts of every command: tests/golden/NAME.txt is what a user sees, NAME.json the same answer as JSON.

To write them anew after an intended change, and then read the diff:
    pytest tests/cli/test_golden.py --refresh-golden
"""

import difflib
import json
import shlex
from pathlib import Path

import pytest

GOLDEN = Path(__file__).parents[1] / "golden"
BOX = (
    "tensorDataType=9 tensorRank=2 globalAddress=0 globalDim=16,4 globalStrides=32 boxDim=8,2 elementStrides=1,1 "
    "interleave=0 swizzle=0 l2Promotion=0 oobFill=0"
)
CORNERS = "lower=-1,-1 upper=-1,-1"
PIXELS = (
    "tensorDataType=9 tensorRank=4 globalAddress=0 globalDim=16,5,4,2 globalStrides=32,160,640 pixelBoxLowerCorner=-1,-1 "
    "pixelBoxUpperCorner=-1,-1 channelsPerPixel=8 pixelsPerColumn=3 elementStrides=1,1,1,1 interleave=0 swizzle=0 "
    "l2Promotion=0 oobFill=0"
)
SCALED = "tile.bin -t bf16 --layout 128B --shape 8x64 --scales sf.bin --scale-format e8m0 --scale-layout nvidia_128x4"
TURN = "--block 64 --arg zeros:f32:64"
SMOKE = "--a=-8192,-0.5,-0.25,-0.125 --b 1024,1,1,1 --c 8388608"
ANSWERS = {
    "formats": "formats",
    "formats-source": "formats e4m3 --source",
    "formats-unsigned": "formats ue8m0",
    "formats-tf32": "formats tf32",
    "decode-e4m3": "decode -t e4m3 0x7e 0xff 0x00 0x80 0b1 8 0x08",
    "decode-e5m2": "decode -t e5m2 0x7b 0x7c 0x7d 0xfb",
    "decode-e2m1": "decode -t e2m1 0 1 2 7 8 15",
    "decode-e8m0": "decode -t e8m0 0 1 254 255",
    "decode-ue4m3": "decode -t ue4m3 0 1 0x7e 0x7f",
    "decode-e4m3fnuz": "decode -t e4m3fnuz 0 1 0x7f 0x80 0x81",
    "decode-mxint8": "decode -t mxint8 0 1 0x7f 0x80 0xff",
    "decode-tf32": "decode -t tf32 0x3f800000 0x3f801fff",
    "decode-f32": "decode -t f32 0x3f800000 0x3dcccccd 0x7f7fffff 1",
    "decode-source": "decode -t bf16 0x3f80 --source",
    "encode-e4m3": "encode -t e4m3 0.3 -1000 nan 1e-30 464 -0 inf 0x1.8p3 f32:0x3f800000",
    "encode-directed": "encode -t e4m3 0.3 -0.3 --rounding up",
    "encode-overflow": "encode -t e5m2 61439 61440 -1e9 --overflow inf",
    "encode-nan": "encode -t e2m1 nan 5 --nan 0x8",
    "encode-exact": "encode -t f32 0.1 1.00000005960464477539062500000001",
    "encode-via": "encode --via cvt.rn.satfinite.e4m3x2.f32 0.1 1 1e40",
    "encode-via-packed": "encode -t e4m3 --via cvt.rn.satfinite.e4m3x2.f16x2 0.1 1",
    "encode-via-nibbles": "encode --via cvt.rn.satfinite.e2m1x2.f32 0.75 -6 nan",
    "encode-via-library": "encode --via torch.float8_e4m3fn -500 f32:0xffc00000",
    "approx": "approx ex2 0x3f000000 0x3f000001 0xff800000 0x7fc00000 0x00400000",
    "approx-ftz": "approx lg2 --ftz 0x3f800001 0x3f800000 0x00400000",
    "approx-halves": "approx ex2 -t bf16 0x3f0d 0x4301",
    "approx-upper-word": "approx rcp -t f64 0x4008000000000001",
    "approx-div": "approx div.full 0x40c00000 0x40400000 0x3f800000 0x7f7fffff",
    "approx-source": "approx rsqrt.approx.ftz.f32 0x40000000 --source",
    "table-e4m3": "table e4m3",
    "table-e2m1": "table e2m1",
    "table-e3m2": "table e3m2",
    "table-ue4m3": "table ue4m3",
    "table-e8m0": "table e8m0 --source",
    "diffpolicy": "diffpolicy",
    "diffpolicy-differs": "diffpolicy e4m3 torch cuda.satfinite",
    "diffpolicy-agrees": "diffpolicy e2m1 cuda.satfinite cuda.constructor",
    "diff-differs": "diff got.npy want.npy -t bf16",
    "diff-within": "diff got.npy want.npy -t bf16 --within 2",
    "diff-agrees": "diff want.npy want.npy -t bf16",
    "explain-diff-equal": "explain-diff want.npy want.npy -t bf16",
    "sources-ptx": "sources ptx",
    "explain-error": "explain random-bits --source",
    "explain-finding": "explain [leak]",
    "explain-verdict": "explain model-differs",
    "explain-status": "explain timeout",
    "layout-list": "layout list 'ldmatrix.m8n8.*' --source",
    "layout-where": "layout where wgmma.m64n128k32.e4m3.d 17 42",
    "layout-where-packed": "layout where mma.m16n8k16.bf16.a 9 3 --source",
    "layout-where-copies": "layout where tcgen05.m64.1x.sfa 9 0",
    "layout-where-amd": "layout where mfma.32x32x64.f8f6f4.a 17 42",
    "layout-holds": "layout holds mma.m16n8k16.bf16.a 5",
    "layout-holds-one": "layout holds wgmma.m64n128k32.e4m3.d 1:5 20",
    "layout-show": "layout show mma.m16n8k16.bf16.a --rows 0:4 --cols 0:6",
    "layout-show-hardware": "layout show mma.m16n8k16.bf16.a --view hardware --rows 0:6",
    "layout-check": "layout check mma.m16n8k16.bf16.a",
    "layout-check-agrees": "layout check mma.m16n8k16.bf16.a tags.npy",
    "layout-check-differs": "layout check mma.m16n8k16.bf16.a wrong.npy",
    "layout-check-turned": "layout check mma.m16n8k16.bf16.a turned.npy",
    "swizzle": "swizzle --source",
    "swizzle-addresses": "swizzle 128B 0x3a0 976",
    "swizzle-pattern": "swizzle 64B",
    "swizzle-tile": "swizzle 128B --tile 8x64 -t bf16 --cols 0:8",
    "banks-conflict": "banks --stride 128 --lanes 8",
    "banks-swizzled": "banks --stride 128 --lanes 8 --swizzle 128B",
    "banks-addresses": "banks 0 4 8 128 256 --width 4 --source",
    "banks-layout": "banks --layout mma.m16n8k16.bf16.b --swizzle 32B --width 4",
    "scales": "scales show",
    "scales-show": "scales show nvidia_128x4 --rows 0:4",
    "scales-hardware": "scales show nvidia_128x4 --shape 120x3 --view hardware --rows 23:26",
    "scales-where": "scales where nvidia_128x4 33 5 --shape 128x8",
    "scales-byte": "scales where nvidia_128x4 --byte 533 --shape 33x5",
    "scales-quantize": "scales quantize 13 2.4375 -0 inf 1 nan 2 --group 3 --divide",
    "scales-quantize-power": "scales quantize 1 -2 0.3 nan --scale e8m0 --ignore-nan",
    "scales-shuffle": "scales shuffle nvidia_128x4 scales.npy new.bin -t e8m0 --fill 0xff",
    "scales-unshuffle": "scales unshuffle nvidia_128x4 sf.bin new.npy -t e8m0 --shape 8x2",
    "desc-decode": "desc decode wgmma-smem 0x4000004000000041 --source",
    "desc-decode-illegal": "desc decode tcgen05-smem 0x4000004000000040",
    "desc-encode": "desc encode wgmma-smem start_address=1024 swizzle=128B stride_byte_offset=1024",
    "desc-encode-tensormap": "desc encode tensormap data_type=bfloat16 dims=256,64 box=64,8 swizzle=128B",
    "desc-encode-im2col": f"desc encode tensormap data_type=bfloat16 dims=16,5,4,2 channels=8 pixels=3 {CORNERS}",
    "desc-walk-im2col": f"desc walk tensormap {PIXELS} --at 8,3,0,0 --offsets 2,1 --start 1024",
    "desc-walk": "desc walk wgmma-smem 0x4000004000000040 wgmma.m64n8k16.bf16.b",
    "desc-walk-overlap": "desc walk wgmma-smem 0x4000000000000040 wgmma.m64n16k16.bf16.b",
    "desc-walk-box": f"desc walk tensormap {BOX} --at 12,3 --start 1024",
    "show-registers": "show acc.bin -t f32 --layout mma.m16n8k16.bf16.d --rows 0:4",
    "show-scaled": f"show {SCALED} --rows 0:3 --cols 28:36",
    "show-scales": "show sf.bin -t e8m0 --layout nvidia_128x4 --shape 8x2",
    "show-plain": "show want.npy -t bf16",
    "diff-layout": "diff d-got.npy d-want.npy -t bf16 --layout mma.m16n8k16.bf16.d",
    "mma": f"mma -t e5m2 {SMOKE} --source",
    "mma-explain": f"mma --explain -t e5m2 {SMOKE}",
    "mma-explain-chain": "mma --explain -t tf32 --unit mma.sync --target sm_80 --a 1,2,3,4,5,6 --b 1,1,1,1,1,0x1p-20",
    "mma-explain-zeros": f"mma --explain --zeros -t f16 --unit mma.sync --target sm_70 {SMOKE}",
    "mma-explain-late": "mma --explain -t e4m3 --unit mma.sync --target sm_90 --a 1.5,2,3 --b 1,1,-448 --c 8388608",
    "mma-explain-groups": "mma --explain -t e2m1 --unit tcgen05.mxf4nvf4 --target sm_100a --a 1.5,6 --b 1,-0.5 "
    "--a-scale 1,2,1,1 --b-scale 448,1,1,1 --scale-format ue4m3 --c 1",
    "mma-explain-scaled": "mma --explain -t e4m3 --unit tcgen05.mxf8f6f4 --target sm_100a --a 1,2 --b 1,1 "
    "--a-scale 2 --b-scale 0x7e",
    "mma-explain-sums": "mma --explain -t e4m3fnuz --unit mfma --target gfx942 --a 1,2,-240 --b 1,1,0.0078125 --c -1",
    "mma-explain-nan": "mma --explain -t e5m2 --a inf,1 --b 0x00,1",
    "mma-explain-integer": "mma --explain -t s8 --a 127,-128 --b 127,1 --c 2147483647",
    "order": "order served.py:one_chain --n 8 --k 32 --m 1,2,5",
    "order-by-rows": "order served.py:by_rows --n 8 --k 32 --m 1,3,4 --against served.py:four_parts",
    "numerics-list": "numerics list --target sm_90a --unit wgmma",
    "numerics-bits": "numerics bits -t e4m3 --source",
    "simulate": f"simulate turn.ptx turn {TURN}",
    "simulate-trace": f"simulate turn.ptx turn {TURN} --no-banks --trace 1:6-9",
    "simulate-at": f"simulate turn.ptx turn {TURN} --no-banks --at tile+64:8",
    "simulate-events": f"simulate turn.ptx turn {TURN} --no-banks --events access,synchronization",
    "simulate-all": "simulate turn.ptx arrivals --block 128 --arg zeros:u32:1 --arg zeros:u32:128 --policy all",
}
SVGS = {
    "layout-show": "layout show mma.m16n8k16.bf16.a",
    "layout-where": "layout where mma.m16n8k16.bf16.a 9 3",
    "swizzle-pattern": "swizzle 128B",
    "swizzle-tile": "swizzle 128B --tile 8x64 -t bf16 --cols 0:16",
    "banks-conflict": "banks --stride 128 --lanes 8",
    "scales-hardware": "scales show nvidia_128x4 --shape 120x3 --view hardware --rows 20:28",
    "desc-walk": "desc walk wgmma-smem 0x4000004000000040 wgmma.m64n8k16.bf16.b",
    "desc-decode": "desc decode wgmma-smem 0x4000004000000041 --source",
    "show-scaled": f"show {SCALED} --cols 24:40",
    "layout-check-differs": "layout check mma.m16n8k16.bf16.a wrong.npy",
}
FAILURES = {
    "error-layout": "layout where mma.m16n8k16.bf16 0 0",
    "error-layout-type": "layout where mma.m16n8k16.bf17.a 0 0",
    "error-layout-illegal": "layout show wgmma.m64n12k16.bf16.d",
    "error-row": "layout where wgmma.m64n128k32.e4m3.d 64 0",
    "error-thread": "layout holds mma.m16n8k16.bf16.a 32",
    "error-lane": "layout holds wgmma.m64n128k32.e4m3.d 1:32",
    "error-value": "layout holds mma.m16n8k16.bf16.a 5 -1",
    "error-span": "layout show mma.m16n8k16.bf16.a --rows 16:20",
    "error-view": "layout show mma.m16n8k16.bf16.a --view tread",
    "error-list": "layout list wgma",
    "error-map": "layout check mma.m16n8k16.bf16.b tags.npy",
    "error-swizzle": "swizzle 256B",
    "error-swizzle-bits": "swizzle 'Swizzle<4,4,3>'",
    "error-address": "swizzle 128B 0xfg",
    "error-banks": "banks",
    "error-misaligned": "banks 2 --width 4",
    "error-scale-layout": "scales where nvidia_128x5 0 0",
    "error-block": "scales where nvidia_128x4 0 9 --shape 128x8",
    "error-shape-of-scales": "scales where nvidia_128x4 0 4",
    "error-byte": "scales where nvidia_128x4 --byte 512",
    "error-descriptor": "desc decode wgmma 1",
    "error-word": "desc decode wgmma-smem 0x1ffffffffffffffff",
    "error-quantum": "desc encode wgmma-smem start_address=1025 swizzle=128B",
    "error-field": "desc encode wgmma-smem start=1024",
    "error-operand": "desc walk wgmma-smem 0x4000004000000040 wgmma.m64n8k16.bf16.d",
    "error-truncated-registers": "show cut.bin -t f32 --layout mma.m16n8k16.bf16.d",
    "error-truncated-tile": "show tile.bin -t bf16 --layout 128B --shape 16x64",
    "error-truncated-scales": "scales unshuffle nvidia_128x4 sf.bin new.npy -t e8m0 --shape 129x2",
    "error-shape-needed": "show tile.bin -t bf16 --layout 128B",
    "error-explain-diff": "explain-diff want.npy -t bf16",
    "error-explain-diff-operand": "explain-diff want.npy -t bf16 --a got.npy",
    "error-diff-layout": "diff got.npy want.npy -t bf16 --layout mma.m16n8k16.bf16.d",
    "error-policy-of-threads": "simulate turn.ptx turn --policy hasty",
    "error-symbol": f"simulate turn.ptx turn {TURN} --at tiel",
    "error-event": f"simulate turn.ptx turn {TURN} --events access,trasfer",
    "error-warp": f"simulate turn.ptx turn {TURN} --trace 2",
    "error-trace": f"simulate turn.ptx turn {TURN} --trace 1:9-",
    "error-unit": "mma --unit wgma -t e4m3 --a 1 --b 1",
    "error-arithmetic": "mma --a-format e4m3 --b-format f16 --a 1 --b 1",
    "error-instruction-k": "mma -t e4m3 --k 16 --a 1 --b 1",
    "error-inexact": "mma -t e4m3 --a 0.3 --b 1",
    "error-filter": "numerics list --unit wgmma --target sm_80",
    "error-no-format": "decode -t e4m4 1",
    "error-no-option": "encode -t e4m3 1 --rouding up",
    "error-no-argument": "decode -t e4m3",
    "error-no-format-option": "encode 1",
    "error-bad-code": "decode -t e4m3 7e",
    "error-code-range": "decode -t ue4m3 0x80",
    "error-bad-number": "encode -t e4m3 1,5",
    "error-ambiguous-number": "encode -t e4m3 0x7e",
    "error-wide-table": "table bf16",
    "error-approx-which": "approx div 0x3f800000 0x40000000",
    "error-approx-unknown": "approx exp2 0x3f800000",
    "error-approx-pairs": "approx div.approx 0x3f800000 0x40000000 0x3f800000",
    "error-approx-format": "approx lg2 -t bf16 0x3f80",
    "error-no-infinity": "encode -t e4m3 1e9 --overflow inf",
    "error-via-and-rounding": "encode --via torch.float8_e4m3fn --rounding up 1",
    "error-via-random": "encode --via cvt.rs.satfinite.e4m3x4.f32 1",
    "error-policy": "diffpolicy e4m3 cuda tensorflow",
    "error-one-policy": "diffpolicy e4m3 torch",
    "error-no-file": "diff got.npy none.npy -t bf16",
    "error-no-format-in-file": "diff got.npy want.npy",
    "error-form": "formats --as xml",
    "error-suffix": "formats -o formats.xlsx",
    "error-explore-suffix": "explore -o page.csv",
    "error-shell": "completion tcsh",
    "error-source": "sources ptxx",
    "error-blame-entry": "blame turn.ptx --assemble-only",
    "error-blame-launch": "blame linear --assemble-only --grid 2",
    "error-blame-ptxas": "blame turn.ptx turn --arg zeros:f32:64 --assemble-only --ptxas nowhere",
    "error-order-function": "order served.py:one_chian",
    "error-order-rows": "order served.py:one_chain --m 1:4",
    "error-order-format": "order served.py:one_chain -t e2m1 --n 8 --k 32 --layout tn",
    "error-code": "explain rase",
}
NARROW = {
    f"{name}-{columns}": (command, columns)
    for columns in (80, 60)
    for name, command in {
        "narrow-formats": "formats",
        "narrow-decode": "decode -t e4m3 0x7e 0xff 0x08",
        "narrow-encode": "encode -t e4m3 0.3 -1000 nan",
        "narrow-approx": "approx ex2 0x3f000000",
        "narrow-table": "table e4m3",
        "narrow-diffpolicy": "diffpolicy e4m3 ml_dtypes cuda.satfinite",
        "narrow-sources": "sources",
        "narrow-diff": "diff got.npy want.npy -t bf16",
        "narrow-layout-list": "layout list 'stmatrix.m8n8.*'",
        "narrow-layout-where": "layout where mma.m16n8k16.bf16.a 9 3",
        "narrow-layout-holds": "layout holds mma.m16n8k8.f16.a 5",
        "narrow-layout-show": "layout show mma.m16n8k16.bf16.a",
        "narrow-layout-check": "layout check mma.m16n8k16.bf16.a wrong.npy",
        "narrow-swizzle": "swizzle",
        "narrow-swizzle-pattern": "swizzle 128B",
        "narrow-banks": "banks --stride 128 --lanes 8",
        "narrow-scales": "scales show",
        "narrow-scales-where": "scales where nvidia_128x4 33 5 --shape 128x8",
        "narrow-desc-decode": "desc decode wgmma-smem 0x4000004000000041",
        "narrow-desc-walk": "desc walk wgmma-smem 0x4000004000000040 wgmma.m64n8k16.bf16.b",
        "narrow-show": f"show {SCALED}",
        "narrow-mma-explain": f"mma --explain -t e5m2 {SMOKE}",
        "narrow-mma-explain-chain": "mma --explain -t f16 --unit mma.sync --target sm_80 --a 1,2,3 --b 1,1,0x1p-20 --c 9",
        "narrow-order": "order served.py:by_rows --n 8 --k 32 --m 2,4",
        "narrow-numerics-list": "numerics list --target sm_89",
        "narrow-numerics-bits": "numerics bits -t e4m3",
        "narrow-simulate": f"simulate turn.ptx turn {TURN} --trace 0:4",
    }.items()
}


def transcript(command, run):
    """What a user sees: the command, the answer, what went to standard error, the exit code."""
    text = f"$ refsim {command}\n{run.out}"
    text += f"[stderr]\n{run.err}" if run.err else ""
    return text + (f"[exit {run.code}]\n" if run.code else "")


def check(path, found, request):
    if request.config.getoption("--refresh-golden", default=False):
        path.write_text(found)
        return
    if not path.exists():
        pytest.fail(f"{path.name} does not exist: {__doc__}")
    wanted = path.read_text()
    lines = difflib.unified_diff(wanted.splitlines(), found.splitlines(), f"golden/{path.name}", "found", lineterm="")
    assert found == wanted, "\n".join(lines)


@pytest.mark.usefixtures("two_files", "dumps", "kernels")
@pytest.mark.parametrize("name", ANSWERS)
def test_text_is_golden(name, refsim, request):
    run = refsim(*shlex.split(ANSWERS[name]))
    assert run.code in (0, 1)
    check(GOLDEN / f"{name}.txt", transcript(ANSWERS[name], run), request)


@pytest.mark.usefixtures("two_files", "dumps", "kernels")
@pytest.mark.parametrize("name", ANSWERS)
def test_json_is_golden(name, refsim, request):
    run = refsim(*shlex.split(ANSWERS[name]), "--as", "json")
    json.loads(run.out, parse_constant=pytest.fail)
    check(GOLDEN / f"{name}.json", run.out, request)


@pytest.mark.usefixtures("two_files", "dumps", "kernels")
@pytest.mark.parametrize("name", FAILURES)
def test_error_is_golden(name, refsim, request):
    run = refsim(*shlex.split(FAILURES[name]))
    assert run.code in (2, 3)
    assert run.out == ""
    check(GOLDEN / f"{name}.txt", transcript(FAILURES[name], run), request)


@pytest.mark.usefixtures("two_files", "dumps", "kernels")
@pytest.mark.parametrize("name", NARROW)
def test_narrow_text_is_golden_and_fits(name, refsim, request):
    command, columns = NARROW[name]
    run = refsim(*shlex.split(command), columns=columns)
    assert [line for line in run.out.splitlines() if len(line) > columns and "https://" not in line] == []
    check(GOLDEN / f"{name}.txt", transcript(command, run), request)


@pytest.mark.usefixtures("dumps")
@pytest.mark.parametrize("name", SVGS)
def test_svg_is_golden(name, refsim, request):
    run = refsim(*shlex.split(SVGS[name]), "--as", "svg")
    assert run.code in (0, 1)
    check(GOLDEN / "svg" / f"{name}.svg", run.out, request)


def test_every_golden_file_has_its_command():
    wanted = {f"{name}.{suffix}" for name in ANSWERS for suffix in ("txt", "json")}
    wanted |= {f"{name}.txt" for name in (*FAILURES, *NARROW)}
    found = {path.name for path in GOLDEN.iterdir() if path.name != "svg"}
    assert found == wanted
    assert {path.stem for path in (GOLDEN / "svg").iterdir()} == set(SVGS)
