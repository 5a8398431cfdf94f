"""Launches that break a rule are refused before a lane runs, each with one error that says the rule."""

import numpy as np
import pytest

from refsim import ptx
from refsim.errors import Kind, RefsimError
from refsim.ptx.machine import launch
from refsim.ptx.machine.launch_rules import extents


def module(
    directives: str = "",
    *,
    target: str = "sm_90a",
    version: str = "9.0",
    shared: int = 0,
    body: str = "",
    parameters: str = ".param .u64 out",
) -> ptx.Program:
    declared = f".shared .align 16 .b8 s[{shared}];" if shared else ""
    return ptx.load(
        f".version {version}\n.target {target}\n.address_size 64\n.visible .entry k({parameters}) {directives}\n"
        f"{{ {declared} .reg .b32 %r<4>; .reg .b64 %d<4>; {body} ret; }}\n"
    )


def refused(program: ptx.Program, grid=1, block=32, **options) -> RefsimError:
    args = [np.zeros(max(parameter.size, 1), np.uint8) for parameter in program.entries["k"]]
    with pytest.raises(RefsimError) as caught:
        program.launch("k", grid, block, args, **options)
    assert caught.value.kind == Kind.USAGE
    assert caught.value.where == "launch of k"
    assert caught.value.rule
    return caught.value


@pytest.mark.parametrize(
    ("directives", "grid", "block", "cluster", "code"),
    [
        ("", 1, 1025, None, "launch-limit"),
        ("", 1, (1, 1, 65), None, "launch-limit"),
        ("", 1, (32, 33), None, "launch-limit"),
        ("", (1, 65536), 32, None, "launch-limit"),
        ("", (1, 1, 65536), 32, None, "launch-limit"),
        (".maxntid 128", 1, 129, None, "launch-limit"),
        (".maxntid 16, 8, 1", 1, (8, 17), None, "launch-limit"),
        (".reqntid 128", 1, 64, None, "bad-launch"),
        (".reqntid 16, 8", 1, 128, None, "bad-launch"),
        (".explicitcluster", 1, 32, None, "bad-launch"),
        (".reqnctapercluster 2", 4, 32, 4, "bad-launch"),
        (".reqnctapercluster 2", 3, 32, None, "bad-launch"),
        (".maxclusterrank 4", 8, 32, 8, "launch-limit"),
        ("", 17, 32, 17, "launch-limit"),
        ("", (4, 3), 32, (2, 2), "bad-launch"),
        (".reqnctapercluster 32", 32, 32, None, "launch-limit"),
    ],
)
def test_a_shape_that_breaks_a_rule(directives, grid, block, cluster, code):
    assert refused(module(directives), grid, block, cluster=cluster).code == code


@pytest.mark.parametrize(
    ("directives", "grid", "block", "cluster"),
    [
        ("", 2, 1024, None),
        ("", (2, 2), (4, 4, 64), None),
        (".maxntid 16, 8, 1", 1, (1, 128), None),
        (".reqntid 128", 1, 128, None),
        (".reqntid 16, 8", 1, (16, 8), None),
        (".minnctapersm 2", 1, 32, None),
        (".maxntid 64 .minnctapersm 99", 1, 64, None),
        (".explicitcluster", 2, 32, 2),
        (".explicitcluster", 2, 32, 1),
        (".explicitcluster .reqnctapercluster 2, 1, 1", 4, 32, None),
        (".reqnctapercluster 2", 4, 32, (2, 1)),
        (".maxclusterrank 4", 8, 32, 4),
        ("", 16, 32, 16),
        ("", np.int32(3), np.uint32(32), None),
        (".reqntid 32 .reqnctapercluster 2 .blocksareclusters", 3, 32, None),
    ],
)
def test_a_shape_that_keeps_the_rules(directives, grid, block, cluster):
    trace = module(directives).launch("k", grid, block, [np.zeros(8, np.uint8)], cluster=cluster)
    assert trace.instructions


def test_a_grid_of_clusters_counts_clusters():
    program = module(".reqntid 32 .reqnctapercluster 2 .blocksareclusters")
    assert program.launch("k", 3, 32, [np.zeros(8, np.uint8)]).instructions == 3 * 2 * 32


@pytest.mark.parametrize("target", ["sm_80", "sm_89"])
@pytest.mark.parametrize("cluster", [1, 2])
def test_a_target_without_clusters_refuses_them(target, cluster):
    assert refused(module(target=target), 2, 32, cluster=cluster).code == "bad-launch"


def test_sm_120_takes_clusters_of_eight():
    program = module(target="sm_120a")
    assert refused(program, 16, 32, cluster=16).code == "launch-limit"
    assert program.launch("k", 8, 32, [np.zeros(8, np.uint8)], cluster=8).instructions


NAMED = "mov.u64 %d1, s;"


@pytest.mark.parametrize(
    ("target", "static", "dynamic"),
    [
        ("sm_90a", 49153, 0),
        ("sm_90a", 0, 232449),
        ("sm_90a", 49152, 232448 - 49151),
        ("sm_80", 0, 166913),
        ("sm_89", 0, 101377),
        ("sm_120a", 0, 101377),
    ],
)
def test_too_much_shared_memory(target, static, dynamic):
    program = module(target=target, shared=static, body=NAMED if static else "")
    assert refused(program, shared_bytes=dynamic).code == "launch-limit"


@pytest.mark.parametrize(
    ("target", "static", "dynamic"),
    [
        ("sm_90a", 49152, 0),
        ("sm_90a", 0, 232448),
        ("sm_90a", 49152, 232448 - 49152),
        ("sm_80", 0, 166912),
        ("sm_89", 0, 101376),
    ],
)
def test_all_the_shared_memory_there_is(target, static, dynamic):
    program = module(target=target, shared=static, body=NAMED if static else "")
    assert program.launch("k", 1, 32, [np.zeros(8, np.uint8)], shared_bytes=dynamic).instructions


def test_shared_memory_of_the_module_that_an_entry_does_not_name_takes_no_room():
    head = ".version 9.0\n.target sm_90a\n.address_size 64\n.shared .b8 big[49152];\n.shared .align 4 .b8 small[64];\n"
    body = ".visible .entry {}(.param .u64 p)\n{{ .reg .b64 %d<2>; mov.u64 %d1, {}; ret; }}\n"
    program = ptx.load(head + body.format("a", "big") + body.format("b", "small"))
    for name in "ab":
        program.launch(name, 1, 32, [np.zeros(8, np.uint8)])


@pytest.mark.parametrize(
    ("version", "target", "size", "fits"),
    [
        ("8.0", "sm_90a", 4352, True),
        ("8.0", "sm_90a", 4353, False),
        ("9.0", "sm_90a", 32764, True),
        ("9.0", "sm_90a", 32765, False),
    ],
)
def test_bytes_of_parameters(version, target, size, fits):
    program = module(version=version, target=target, parameters=f".param .align 4 .b8 p[{size}]")
    if fits:
        assert program.launch("k", 1, 32, [bytes(size)]).instructions
    else:
        assert refused(program).code == "launch-limit"


def test_registers_of_a_block_must_fit(monkeypatch):
    monkeypatch.setattr(launch, "registers_used", lambda *_: 72)
    assert refused(module(), block=1024).code == "launch-limit"
    for block, directives in ((768, ""), (1024, ".maxntid 1024")):
        assert module(directives).launch("k", 1, block, [np.zeros(8, np.uint8)]).instructions


def test_a_cooperative_grid_must_be_resident(monkeypatch):
    monkeypatch.setattr(launch, "registers_used", lambda *_: 32)
    program = module(".maxntid 1024")
    assert program.launch("k", 264, 1024, [np.zeros(8, np.uint8)], cooperative=True).instructions
    error = refused(program, 265, 1024, cooperative=True)
    assert error.code == "launch-limit"
    assert "264" in error.what


def test_without_ptxas_one_block_an_sm_is_resident(monkeypatch):
    monkeypatch.setattr(launch, "registers_used", lambda *_: None)
    error = refused(module(), 133, 32, cooperative=True)
    assert (error.code, "no ptxas" in error.rule) == ("launch-limit", True)


@pytest.mark.parametrize("shape", [0, -1, (), (1, 2, 3, 4), 2.0, "3", None, (1, 0), 2**31])
def test_extents_that_are_none(shape):
    with pytest.raises(RefsimError, match="bad-launch"):
        extents("grid", shape)
