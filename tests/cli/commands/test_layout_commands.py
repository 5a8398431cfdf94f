"""The commands about layouts: both directions of a question, dumps as numbers, every form, and what a start costs."""

import csv
import io
import json
import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest

from refsim import decode, files
from refsim.layouts.families import fragment
from refsim.layouts.scales import scale_layout
from refsim.render import FORMS

ROOT = Path(__file__).parents[3]
MARK = "<!-- refsim layout list --source --as md -->\n"
COMMANDS = {
    "layout list": "layout list",
    "layout show": "layout show wgmma.m64n128k32.e4m3.d",
    "layout where": "layout where wgmma.m64n128k32.e4m3.d 17 42",
    "layout holds": "layout holds wgmma.m64n128k32.e4m3.d 37",
    "layout check": "layout check mma.m16n8k16.bf16.a wrong.npy",
    "swizzle": "swizzle 128B --tile 8x64 -t bf16",
    "banks": "banks --stride 128 --lanes 8",
    "scales show": "scales show nvidia_128x4",
    "scales where": "scales where nvidia_128x4 33 2",
    "scales shuffle": "scales shuffle nvidia_128x4 scales.npy new.bin -t e8m0",
    "scales unshuffle": "scales unshuffle nvidia_128x4 sf.bin new.npy -t e8m0 --shape 8x2",
    "desc decode": "desc decode wgmma-smem 0x4000004000000040",
    "desc encode": "desc encode wgmma-smem start_address=1024 swizzle=128B",
    "desc walk": "desc walk wgmma-smem 0x4000004000000040 wgmma.m64n128k16.bf16.a",
    "show": "show tile.bin -t bf16 --layout 128B --shape 8x64",
    "diff": "diff d-got.npy d-want.npy -t bf16 --layout mma.m16n8k16.bf16.d",
}


@pytest.mark.parametrize(
    "name",
    [
        "mma.m16n8k16.bf16.a",
        "wgmma.m64n8k16.f16.d.f16",
        "ldmatrix.m8n8.x4.b16.trans",
        "tcgen05.m64.1x.sfa",
        "tcgen05.m64n16.1sm.d",
        "mfma.16x16x128.f8f6f4.a.fp4",
        "mma.m16n8k64.mxf4.2x.sfa.byte2.thread1",
    ],
)
def test_where_and_holds_lead_to_each_other(name, refsim):
    row, col = 3, 0
    answer = json.loads(refsim("layout", "where", name, str(row), str(col), "--as", "json").out)
    for holder in answer["holders"]:
        thread = next(holder[key] for key in ("thread", "tmem_lane") if key in holder)
        value = next(holder[key] for key in ("value", "column", "byte") if key in holder)
        found = json.loads(refsim("layout", "holds", name, str(thread), str(value), "--as", "json").out)["elements"]
        assert [(each["row"], each["col"]) for each in found] == [(row, col)]
    assert len(answer["holders"]) == fragment(name).copies


def test_where_says_what_the_design_says(refsim):
    run = refsim("layout", "where", "wgmma.m64n128k32.e4m3.d", "17", "42")
    assert run.out.startswith("warp 1  lane 5  value 20        thread 37 of 128        [PTX ISA, ")
    assert run.err == ""


def test_show_as_csv_is_the_whole_fragment(refsim):
    run = refsim("layout", "show", "wgmma.m64n8k16.bf16.d", "--memory", "none", "--as", "csv")
    rows = list(csv.DictReader(io.StringIO(run.out)))
    assert len(rows) == 64 * 8
    frag = fragment("wgmma.m64n8k16.bf16.d")
    for each in rows[::37]:
        at = frag.coord(int(each["thread"]), int(each["value"]))
        assert (int(at[0]), int(at[1])) == (int(each["row"]), int(each["col"]))
        assert int(each["warp"]) * 32 + int(each["lane"]) == int(each["thread"])
        assert int(each["bank"]) == int(each["byte"]) // 4 % 32


def test_swizzle_leads_back(refsim):
    addresses = [str(address) for address in range(0, 4096, 52)]
    there = json.loads(refsim("swizzle", "128B", *addresses, "--as", "json").out)["addresses"]
    back = refsim("swizzle", "128B", "-", "--as", "json", stdin=" ".join(row["swizzled"] for row in there).encode())
    assert [int(row["swizzled"], 16) for row in json.loads(back.out)["addresses"]] == [int(each) for each in addresses]


@pytest.mark.usefixtures("dumps")
def test_scales_go_out_and_come_back(refsim, tmp_path):
    assert refsim("scales", "shuffle", "cdna4_32", "scales.npy", "out.bin", "-t", "e8m0", "--fill", "0xff").code == 0
    packed = np.fromfile(tmp_path / "out.bin", np.uint8)
    layout, want = scale_layout("cdna4_32"), np.load(tmp_path / "scales.npy")
    assert np.array_equal(packed, layout.shuffle(want, fill=0xFF))
    assert refsim("scales", "unshuffle", "cdna4_32", "out.bin", "back.npy", "-t", "e8m0", "--shape", "8x2").code == 0
    assert np.array_equal(np.load(tmp_path / "back.npy").view(np.uint8).reshape(8, 2), want)


@pytest.mark.parametrize("there", ["npy", "npz", "safetensors"])
@pytest.mark.usefixtures("dumps")
def test_scales_go_round_through_every_kind_of_file_without_a_layouts_name(refsim, tmp_path, there):
    want = np.load(tmp_path / "scales.npy")
    assert refsim("scales", "shuffle", "scales.npy", f"out.{there}", "-t", "e8m0").code == 0
    run = refsim("scales", "unshuffle", f"out.{there}", "--shape", "8x2")
    assert (run.code, f"to out.unshuffled.{there}: shape 8 x 2" in run.out) == (0, True), run.err
    assert np.array_equal(files.load(tmp_path / f"out.unshuffled.{there}").codes, want)
    assert np.array_equal(files.load(tmp_path / f"out.{there}").codes, scale_layout("nvidia_128x4").shuffle(want))


def test_descriptor_goes_round(refsim):
    word = refsim("desc", "encode", "tcgen05-smem", "start_address=0x800", "swizzle=64B", "stride_byte_offset=512").out
    fields = json.loads(refsim("desc", "decode", "tcgen05-smem", word.strip(), "--as", "json").out)["fields"]
    found = {each["field"]: each["value"] for each in fields}
    assert (found["start_address"], found["swizzle"], found["stride_byte_offset"]) == (2048, "64B", 512)


@pytest.mark.usefixtures("dumps")
def test_show_scales_every_number(refsim, tmp_path):
    arguments = "show tile.bin -t bf16 --layout 128B --shape 8x64 --scales sf.bin --scale-format e8m0"
    answer = json.loads(refsim(*arguments.split(), "--scale-layout", "nvidia_128x4", "--as", "json").out)
    assert len(answer["cells"]) == 8 * 64
    scales = decode(np.load(tmp_path / "scales.npy"), "e8m0")
    for cell in answer["cells"]:
        stored = decode(np.array([int(cell["code"], 16)], np.uint16), "bf16")[0]
        assert stored == cell["mn"] + cell["k"] / 8
        assert cell["number"] == stored * scales[cell["mn"], cell["k"] // 32]


def test_show_reads_an_element_out_of_its_slot(refsim, tmp_path):
    """FP4 of kind::f8f6f4 stands in bits 2 to 5 of its byte."""
    frag = fragment("mma.m16n8k32.e2m1.b")
    row, col = frag.elements
    (((row + col) % 16) << 2 | 0b11).astype(np.uint8).tofile(tmp_path / "b.bin")
    answer = json.loads(refsim("show", "b.bin", "-t", "e2m1", "--layout", frag.name, "--as", "json").out)
    assert len(answer["cells"]) == 32 * 8
    assert all(int(cell["code"], 16) == (cell["row"] + cell["col"]) % 16 for cell in answer["cells"])


def test_check_names_the_layout_that_a_map_has(refsim, tmp_path):
    row, col = fragment("ldmatrix.m8n8.x4.b16").elements
    np.save(tmp_path / "map.npy", np.stack([row, col], axis=-1))
    run = refsim("layout", "check", "ldmatrix.m8n8.x4.b16.trans", "map.npy")
    assert run.code == 1
    assert "this is the layout of ldmatrix.m8n8.x4.b16" in run.out
    assert refsim("layout", "check", "ldmatrix.m8n8.x4.b16", "map.npy").code == 0


def test_check_reads_a_table(refsim):
    run = refsim("layout", "show", "mma.m16n8k8.f16.a", "--as", "csv", "-o", "map.csv")
    assert run.code == 0
    run = refsim("layout", "check", "mma.m16n8k8.f16.a", "map.csv")
    assert (run.code, run.out) == (0, "128 places agree with mma.m16n8k8.f16.a\n")


@pytest.mark.parametrize("content", [b"", b"\x93NUMPY", b"no array", np.arange(4.0).tobytes()])
def test_check_refuses_what_is_no_map(content, refsim, tmp_path):
    (tmp_path / "map.npy").write_bytes(content)
    run = refsim("layout", "check", "mma.m16n8k16.bf16.a", "map.npy")
    assert run.code == 3
    assert run.err.startswith("[bad-file]")


@pytest.mark.usefixtures("dumps")
@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize("form", FORMS)
def test_every_command_has_every_form(form, name, refsim):
    run = refsim(*COMMANDS[name].split(), "--as", form)
    assert run.code in (0, 1)
    assert run.out.endswith("\n")
    if form == "json":
        json.loads(run.out, parse_constant=pytest.fail)
    if form == "svg":
        ET.fromstring(run.out)
    if form == "csv":
        assert len(list(csv.reader(io.StringIO(run.out)))) >= 2


@pytest.mark.usefixtures("dumps")
@pytest.mark.parametrize("name", COMMANDS)
def test_text_fits_60_columns(name, refsim):
    run = refsim(*COMMANDS[name].split(), columns=60)
    assert run.code in (0, 1)
    assert [line for line in run.out.splitlines() if len(line) > 60] == []


LAYERS = {
    "cli",
    "compare",
    "conversions",
    "errors",
    "evidence",
    "files",
    "formats",
    "integers",
    "layouts",
    "lazy",
    "render",
    "sources",
    "typed_arrays",
}


@pytest.mark.usefixtures("dumps")
def test_a_start_loads_only_what_the_command_needs(tmp_path):
    """What a start costs is what it loads: NumPy, click and the layers that the answer is made of, no device or simulator.

    Each command runs in a fork of one process that has loaded the packages which every command may load.
    """
    script = (
        "import sys, os; before = set(sys.modules); import click, ml_dtypes, numpy\n"
        "for line in sys.argv[1:]:\n"
        "    if not os.fork():\n"
        "        out, sys.stdout = sys.stdout, open(os.devnull, 'w')\n"
        "        from refsim.cli import main; code = main(line.split())\n"
        "        print(line, code, *sorted(set(sys.modules) - before), sep='\\t', file=out, flush=True); os._exit(0)\n"
        "    os.wait()\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", script, *COMMANDS.values()],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    answers = [line.split("\t") for line in run.stdout.splitlines()]
    assert [line for line, *_ in answers] == [*COMMANDS.values()], run.stderr
    for line, code, *loaded in answers:
        assert code in ("0", "1"), line
        packages = {module.partition(".")[0] for module in loaded} - set(sys.stdlib_module_names)
        allowed = {"refsim", "numpy", "click", "ml_dtypes"}
        assert {package for package in packages if not package.startswith("_")} <= allowed, line
        layers = {module.split(".")[1] for module in loaded if module.startswith("refsim.")}
        assert "cli" in layers
        assert layers <= LAYERS, line


def test_list_has_every_name_once(refsim):
    from refsim.layouts.families import fragments

    answer = json.loads(refsim("layout", "list", "--as", "json").out)["layouts"]
    kinds = {"swizzle", "scales", "descriptor"}
    assert sum(row["count"] for row in answer if row["kind"] not in kinds) == len(fragments())
    assert kinds <= {row["kind"] for row in answer}
    assert len({(row["layout"], row["varying"], row["evidence"]) for row in answer}) == len(answer)


def test_the_report_of_layouts_is_current(refsim, request):
    page = ROOT / "conformance" / "reports" / "layouts.md"
    intro, mark, table = page.read_text().partition(MARK)
    assert mark, f"{page} has no line {MARK}"
    found = "\n" + refsim("layout", "list", "--source", "--as", "md").out
    if request.config.getoption("--refresh-golden"):
        page.write_text(intro + mark + found)
        return
    assert table == found, "pytest tests/cli/commands/test_layout_commands.py --refresh-golden writes it anew"


TILED = (
    "tensorDataType=9 tensorRank=2 globalAddress=0 globalDim=16,4 globalStrides=32 boxDim=8,2 elementStrides=1,1 interleave=0 "
    "swizzle=0 l2Promotion=0 oobFill=0"
)


@pytest.mark.parametrize(
    ("arguments", "code", "error"),
    [
        ("show none.bin -t e4m3", 3, "empty-file"),
        ("scales where cdna4_16 --shape 99999x99999 --byte 64", 2, "too-large"),
        ("scales show cdna4_16 --shape 99999x99999 --rows 0:2", 2, "too-large"),
        ("show none.bin -t e8m0 --layout nvidia_128x4 --shape 99999x99999", 3, "truncated-file"),
        ("layout show wgmma.m64n128k32.e4m3.d --memory 128B --by bnak", 2, "unknown-name"),
        ("desc decode tensormap tensorRank=2", 2, "bad-descriptor"),
        ("desc encode tensormap data_type=uint8 dims=64,9,2 box=64,9,2 lower=0", 2, "unknown-name"),
        ("desc encode tensormap data_type=uint8 dims=64,9,2 channels=64 lower=0 upper=0", 2, "bad-descriptor"),
        (
            "desc encode tensormap data_type=uint8 dims=64,9,2 channels=64 pixels=8 lower=9 upper=0",
            2,
            "bad-tensor-map",
        ),
        (f"desc walk tensormap {TILED} --offsets 1", 2, "bad-box"),
        (f"desc walk tensormap {TILED} --at 1,,2", 2, "bad-value"),
        ("layout show mma.m16n8k16.bf16.a --rows 4:4", 2, "out-of-range"),
        ("layout show mma.m16n8k16.bf16.a --cols 8:4", 2, "out-of-range"),
        ("layout show mma.m16n8k16.bf16.a --rows 16:", 2, "out-of-range"),
    ],
)
def test_input_beyond_reason_is_an_error_of_the_user(arguments, code, error, refsim, tmp_path):
    (tmp_path / "none.bin").write_bytes(b"")
    run = refsim(*arguments.split())
    assert run.code == code
    assert run.err.startswith(f"[{error}")


@pytest.mark.parametrize("group", ["layout", "scales", "desc", "ptx"])
def test_a_mistyped_subcommand_shows_the_nearest(refsim, group):
    run = refsim(group, "xplain")
    assert run.code == 2
    assert "[unknown-command]" in run.err
    assert f"at: refsim {group}" in run.err
    assert "nearest:" in run.err or "one of " in run.err
