"""Every option of `refsim explain-diff` beside every question: it has a meaning there, or is refused by name."""

import numpy as np
import pytest

from refsim.cli.commands.explain_diff import QUESTIONS as KNOWN
from refsim.cli.commands.explain_diff import command
from refsim.files import save

FILES = {"-t", "--key", "--seconds", "--as", "-o", "--source"}
PRODUCT = FILES | {"--a", "--b", "--c", "--a-scale", "--b-scale", "--a-format", "--b-format", "--unit", "--target"}
SUMS = {"--k", "--instruction-k", "--interval", "--at"}
FUNCTION = FILES | {"--scale", "--special", "--operand-format"}
QUESTIONS = {
    "outputs": ("d.npy d.npy", FILES | {"--values", "--quantized", "--row"}),
    "product": ("p.npy --a a.npy --b a.npy", PRODUCT | SUMS | {"--m-indices", "--scale-format"}),
    "experts": ("p.npy --a a.npy --b e.npy --m-indices i.npy", PRODUCT | SUMS | {"--m-indices"}),
    "blocks": (
        "p.npy --a a.npy --b a.npy --a-scale s.npy --b-scale s.npy --scale-format e8m0",
        PRODUCT | {"--scale-format", "--global-scale"},
    ),
    "integers": (
        "n.npy --a u.npy --b u.npy --a-format u8",
        PRODUCT - {"--unit", "--target"} | {"--a-zero", "--b-zero", "--d-zero", "--d-format", "--at"},
    ),
    "weights": (
        "p.npy --a h.npy --b u.npy --b-format u8 --b-scale 1",
        PRODUCT - {"--a-scale"} | SUMS | {"--b-zero", "--scale-format"},
    ),
    "softmax": ("d.npy --row softmax --x d.npy", FUNCTION | {"--row", "--x"}),
    "rms_norm": (
        "d.npy --row rms_norm --x d.npy",
        FUNCTION - {"--scale"} | {"--row", "--x", "--weight", "--gate", "--eps"},
    ),
    "attention": (
        "d.npy --attention --q h.npy --k h.npy --v h.npy",
        FUNCTION
        | {
            "--attention",
            "--q",
            "--k",
            "--v",
            "--causal",
            "--window",
            "--sinks",
            "--softcap",
            "--q-scale",
            "--k-scale",
            "--v-scale",
            "--unit",
            "--target",
            "--at",
        },
    ),
    "values": ("d.npy --values d.npy", FILES | {"--values", "--scales", "--attention", "--row", "--quantized"}),
    "quantiser": (
        "c.npy --quantized d.npy --to mxfp8",
        FILES | {"--quantized", "--to", "--scales", "--want-scales", "--layout", "--recipe", "--operand-format"},
    ),
    "case": ("case.json", {"--seconds", "--trust", "--as", "-o", "--source"}),
    "kernel": ("row_offset case.json", {"--seconds", "--kernels", "--as", "-o", "--source"}),
}
"""The command line of each question, and the options that mean something in it, or make it another question."""
OPTIONS = {min(each.opts, key=len): each for each in command.params if each.param_type_name == "option"}
WORDS = {
    "-t": "f32",
    "--row": "silu",
    "--at": "0,0",
    "--target": "sm_100a",
    "--unit": "wgmma",
    "--special": "exact",
    "--as": "json",
    "--a-format": "e4m3",
    "--b-format": "e4m3",
    "--d-format": "s32",
    "--scale-format": "e8m0",
    "--operand-format": "bf16",
    "--key": "name",
    "--to": "mxfp8",
    "--layout": "nvidia_128x4",
    "--recipe": "ocp",
    "-o": "out.json",
}
SAY_THE_QUESTION = {"--a", "--b", "--m-indices", "--scale-format", "--row", "--attention", "--values", "--quantized"}
NUMBERS = {
    "--global-scale",
    "--instruction-k",
    "--interval",
    "--eps",
    "--d-zero",
    "--scale",
    "--seconds",
    "--window",
    "--softcap",
}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("questions")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        codes = np.full((32, 32), 0x38, np.uint8)
        for name, (array, format) in {
            "a.npy": (codes, "e4m3"),
            "c.npy": (codes, "e4m3"),
            "d.npy": (np.ones((32, 32), np.float32), None),
            "e.npy": (codes[None], "e4m3"),
            "h.npy": (np.full((32, 32), 0x3F80, np.uint16), "bf16"),
            "i.npy": (np.zeros(32, np.int32), None),
            "n.npy": (np.full((32, 32), 32, np.int32), None),
            "p.npy": (np.full((32, 32), 32, np.float32), None),
            "s.npy": (np.full((32, 1), 127, np.uint8), None),
            "u.npy": (np.ones((32, 32), np.uint8), None),
        }.items():
            if format is None:
                np.save(name, array)
            else:
                save(name, array, format)
        yield folder


@pytest.mark.parametrize("question", QUESTIONS)
def test_an_option_without_a_meaning_is_refused_by_its_name(refsim, files, monkeypatch, question):
    monkeypatch.chdir(files)
    line, known = QUESTIONS[question]
    for short, option in OPTIONS.items():
        if short in known or short in line.split():
            continue
        word = [] if option.is_flag else [WORDS.get(short) or ("2" if short in NUMBERS else "d.npy")]
        run = refsim("explain-diff", *line.split(), short, *word)
        assert run.code == 2, (short, run.out)
        assert run.err.startswith("[usage]"), (short, run.err)
        named = [short, max(option.opts, key=len), *(line.split() if short in SAY_THE_QUESTION else ())]
        assert any(word.lstrip("-") in run.err for word in named), (short, run.err)


@pytest.mark.parametrize("question", [each for each in QUESTIONS if each not in ("case", "kernel")])
def test_an_option_with_a_meaning_is_no_stranger(refsim, files, monkeypatch, question):
    monkeypatch.chdir(files)
    line, known = QUESTIONS[question]
    assert known <= set(OPTIONS)
    for short in sorted(known - {"-o"} - set(line.split())):
        option = OPTIONS[short]
        word = [] if option.is_flag else [WORDS.get(short) or ("2" if short in NUMBERS else "d.npy")]
        seconds = [] if short == "--seconds" else ["--seconds", "1"]
        run = refsim("explain-diff", *line.split(), short, *word, *seconds)
        assert not any(f"{max(option.opts, key=len)} with {each.name}" in run.err for each in KNOWN), (short, run.err)
        assert run.code in (0, 1, 2, 5), (short, run.err)
