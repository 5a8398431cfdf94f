"""The GPUs that code is compiled for: one table, and the rules for which code runs on which GPU.

`sm_90` is the plain architecture, `sm_90a` adds features of this chip only (wgmma), `sm_100f` adds features that its
family shares.
"""

import re
from dataclasses import dataclass
from functools import lru_cache

from refsim.errors import RefsimError, UnfitTargetError, nearest
from refsim.sources import CUDA_PRODUCTS, LLVM, PTX, Source

_DIRECTIVE = PTX["PTX module directives, .target"]


@dataclass(frozen=True)
class Architecture:
    """One number of a target: the suffixes it allows, its family, and the architecture whose tensor cores model it.

    `family` is the first number of the architectures that share features by the suffix f; 0 if there are none. `cores`
    is the architecture whose tensor cores are used for it, unverified if that is another architecture; 0 if it has
    none.
    """

    number: int
    chips: str
    suffixes: str = ""
    family: int = 0
    cores: int = 0
    source: Source = _DIRECTIVE

    @property
    def name(self) -> str:
        """Return the plain name: sm_100."""
        return f"sm_{self.number}"

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names with every suffix, the one with all features last: sm_100, sm_100f, sm_100a."""
        return (self.name, *(f"{self.name}{suffix}" for suffix in self.suffixes))


# Suffixes and families come from ptxas 13.4 (--gpu-name, and which code it accepts for which target). It starts at sm_75.
ARCHITECTURES = (
    *(Architecture(number, "Kepler") for number in (30, 32, 35, 37)),
    *(Architecture(number, "Maxwell") for number in (50, 52, 53)),
    *(Architecture(number, "Pascal") for number in (60, 61, 62)),
    Architecture(70, "V100", cores=70),
    Architecture(72, "Jetson Xavier", cores=70),
    Architecture(75, "T4", cores=75),
    Architecture(80, "A100", cores=80),
    Architecture(86, "RTX A6000, A2", cores=86),
    Architecture(87, "Jetson AGX Orin", cores=86),
    Architecture(88, "Ampere of a later SoC", cores=86),
    Architecture(89, "L40S, RTX 4090", cores=89),
    Architecture(90, "H100, H200", "a", cores=90),
    Architecture(100, "B200", "fa", 100, cores=100),
    Architecture(103, "B300", "fa", 100, cores=100),
    Architecture(107, "Rubin", "fa", 100, cores=100),
    Architecture(110, "Jetson T5000", "fa", 110, cores=100),
    Architecture(120, "RTX 5090", "fa", 120, cores=120),
    Architecture(121, "GB10", "fa", 120, cores=120),
)


_CAPABILITIES, _PROCESSORS = CUDA_PRODUCTS["compute capability of each GPU"], LLVM["AMDGPUUsage, processors"]
CHIPS: dict[str, tuple[str, Source]] = {
    chip: (target, source)
    for target, chips, source in (
        ("sm_70", "v100 v100s gv100 titanv volta", _CAPABILITIES),
        ("sm_75", "t4 turing t1000 titanrtx rtx2060 rtx2070 rtx2080", _CAPABILITIES),
        ("sm_80", "a100 a100x a30 a30x a800", _CAPABILITIES),
        ("sm_86", "a2 a10 a10g a16 a40 a4000 a5000 a6000 rtxa4000 rtxa4500 rtxa5000 rtxa6000", _CAPABILITIES),
        ("sm_86", "rtxa2000 rtxa3000 3060 3070 3080 3090 rtx3050 rtx3060 rtx3070 rtx3080 rtx3090", _CAPABILITIES),
        ("sm_87", "orin jetsonorin jetsonagxorin orinnx jetsonorinnx orinnano jetsonorinnano", _CAPABILITIES),
        ("sm_89", "ada l4 l20 l40 l40s rtx2000ada rtx4000ada rtx4500ada rtx5000ada rtx6000ada", _CAPABILITIES),
        ("sm_89", "4070 4080 4090 rtx4050 rtx4060 rtx4070 rtx4080 rtx4090", _CAPABILITIES),
        ("sm_90a", "hopper h20 h100 h200 h800 gh200", _CAPABILITIES),
        ("sm_100a", "b100 b200 gb200", _CAPABILITIES),
        ("sm_103a", "b300 gb300", _CAPABILITIES),
        ("sm_110a", "thor jetsonthor jetsont4000 jetsont5000", _CAPABILITIES),
        ("sm_120a", "5070 5080 5090 rtx5060 rtx5070 rtx5080 rtx5090", _CAPABILITIES),
        ("sm_120a", "rtx5050 rtxpro2000 rtxpro4000 rtxpro4500 rtxpro5000 rtxpro6000", _CAPABILITIES),
        ("sm_121a", "gb10 dgxspark", _CAPABILITIES),
        ("gfx908", "mi100", _PROCESSORS),
        ("gfx90a", "mi210 mi250 mi250x", _PROCESSORS),
        ("gfx942", "mi300 mi300a mi300x mi308x mi325x", _PROCESSORS),
        ("gfx950", "mi350x mi355x", _PROCESSORS),
    )
    for chip in chips.split()
}
"""The target of each product with all its features, and where it is documented; keys are bare product names."""
_VENDORS = re.compile(
    r"nvidia|amd|geforce|tesla|instinct|quadro|blackwell|workstation|server|edition|generation|laptop|gpu"
)
_FORM = re.compile(r"(\d+gb?|hbm\d*e?|sxm\d*|pcie|nvl\d*|ti|super|d|max|q|sff|ac|oam|vf|mig|\dg\.\d+gb)")


@dataclass(frozen=True)
class SpecificUnit:
    """A unit that only some targets have: `unit` is the prefix of its opcodes and of its names in refsim.numerics.

    `having` is a part that only its opcodes contain. Measured: ptxas 13.4, one instruction on every target.
    """

    unit: str
    what: str
    targets: tuple[str, ...]
    having: str = ""
    source: Source = _DIRECTIVE

    def covers(self, name: str) -> bool:
        """Return whether an opcode or a unit belongs to this unit: tcgen05.mma.cta_group::1.kind::f16, tcgen05.f16."""
        return f"{name}.".startswith(self.unit) and (not self.having or self.having in name.split("."))


def _specific(*families: int) -> tuple[str, ...]:
    return tuple(name for row in ARCHITECTURES if row.family in families for name in row.names[1:])


_ACCELERATED = tuple(name for name in _specific(100, 110) if name.endswith("a"))
_REDUCING = tuple(name for name in _specific(100, 110) if not name.startswith("sm_100"))

SPECIFIC_UNITS = (
    SpecificUnit("wgmma.", "wgmma", ("sm_90a",)),
    SpecificUnit("tcgen05.i8.", "tcgen05 of kind i8", ("sm_100a", "sm_110a")),
    SpecificUnit("tcgen05.mma.", "tcgen05 of kind i8", ("sm_100a", "sm_110a"), "kind::i8"),
    *(
        SpecificUnit("tcgen05.mma.sp.", "a sparse A of FP4", _ACCELERATED, kind)
        for kind in ("kind::mxf4", "kind::mxf4nvf4")
    ),
    *(
        SpecificUnit("tcgen05.mma.", f".{each}", _ACCELERATED, each)
        for each in ("scale_vec::1X", "scale_vec::2X", "scale_vec::4X")
    ),
    SpecificUnit("tcgen05.shift.", "tcgen05.shift", _ACCELERATED),
    SpecificUnit("tcgen05.ld.red.", "tcgen05.ld.red", _REDUCING),
    SpecificUnit("tcgen05.", "tcgen05", _specific(100, 110)),
    *(
        SpecificUnit("cp.async.bulk.tensor.", "TMA with .cta_group", _specific(100, 110), each)
        for each in ("cta_group::1", "cta_group::2")
    ),
    SpecificUnit("mma.sync.mx", "mma with block scaling", _specific(120)),
    SpecificUnit("mma.", "mma with block scaling", _specific(120), "block_scale"),
    SpecificUnit("mma.", "mma of kind f8f6f4", _specific(120), "kind::f8f6f4"),
)
_RENAMED = {101: 110}  # sm_101 became sm_110 with CUDA 13
_BY_NUMBER = {row.number: row for row in ARCHITECTURES}
_OF_AMD = tuple(dict.fromkeys(target for target, _ in CHIPS.values() if target.startswith("gfx")))
_SPELLED = re.compile(r"sm[_-]?([0-9]{2,3})([af]?)")
_NAME = re.compile(r"sm_([0-9]{2,3})([af]?)")


@dataclass(frozen=True)
class Target:
    """An architecture and the suffix it was named with: sm_90a is 90 and "a"."""

    name: str
    number: int
    suffix: str

    @property
    def row(self) -> Architecture:
        """Return the table entry of the architecture."""
        return _BY_NUMBER[self.number]

    @property
    def compute(self) -> str:
        """Return the compiler's name for the architecture: compute_90a."""
        return f"compute_{self.number}{self.suffix}"


def names() -> tuple[str, ...]:
    """Return every target by name, oldest first; within an architecture the target with all features comes last."""
    return tuple(name for row in ARCHITECTURES for name in row.names)


def target_name(name: str) -> str:
    """Return the name of a target for a chip or another spelling; return any other text unchanged.

    target_name("NVIDIA H100 80GB") is "sm_90a", target_name("sm90") "sm_90", target_name("mi300x") "gfx942". Source:
    the chip's.
    """
    return _target_name(name) if isinstance(name, str) and len(name) <= 80 else name


@lru_cache(maxsize=256)
def _target_name(name: str) -> str:
    given = name.strip().lower().partition(":")[0]  # gfx942:sramecc+:xnack-
    if spelled := _SPELLED.fullmatch(given):
        return f"sm_{spelled[1]}{spelled[2]}"
    words = [word for word in re.split(r"[\s_-]+", _VENDORS.sub("", given)) if word and not _FORM.fullmatch(word)]
    found = CHIPS.get("".join(words))
    return found[0] if found else given if given in _OF_AMD else name


def target_named(name: str) -> Target:
    """Return the target called `name`: a target such as sm_90a, or a chip such as H100.

    Raises RefsimError `unknown-target` with the nearest names. target_named("sm_101a").number is 110: sm_101 was its
    name before CUDA 13. Source: PTX ISA, .target.
    """
    return _target_named(target_name(name) if isinstance(name, str) else repr(name)[:80])


@lru_cache(maxsize=256)
def _target_named(name: str) -> Target:
    """Return the target of a canonical name; raise RefsimError `unknown-target` for others and for AMD's targets."""
    if name in _OF_AMD:
        raise RefsimError(
            "unknown-target",
            f"{name} is a target of AMD, and this needs one of NVIDIA",
            rule="the simulator executes PTX, which is code for NVIDIA's GPUs",
            help=f"sm_90a for an H100; refsim.numerics and refsim.layouts know {name}",
        )
    match = _NAME.fullmatch(name)
    number = _RENAMED.get(int(match[1]), int(match[1])) if match else 0
    row = _BY_NUMBER.get(number)
    if match is None or row is None:
        known = [*CHIPS, *_OF_AMD]
        if name.lower().startswith(("sm", "compute")):
            known = [each for row in ARCHITECTURES if row.cores for each in row.names]
        raise RefsimError(
            "unknown-target",
            f"no target is called {name!r}",
            help=f"nearest: {', '.join(map(_with_target, nearest(name.lower(), known)))}",
            rule=f"targets are {', '.join(each.name for each in ARCHITECTURES if each.cores)}, with a or f from sm_90 on, "
            "or a chip such as H100, B200, RTX 4090",
        )
    if match[2] not in row.suffixes:
        what = f"suffix a since sm_90, suffix f since sm_100: {_DIRECTIVE}"
        raise RefsimError("unknown-target", f"no target is called {name!r}", rule=what, help=row.names[-1])
    return Target(name, number, match[2])


def _with_target(name: str) -> str:
    return f"{name} ({CHIPS[name][0]})" if name in CHIPS else name


def assembled(target: str) -> str:
    """Return the target that the PTX text of an old target is taken for: sm_50 for sm_10 to sm_37, which no compiler of
    CUDA 12 or later writes. Later GPUs run such a text. Source: ptxas 12.9, --gpu-name."""
    old = re.fullmatch(r"(?:sm|compute)_([123][0-9])", target)
    return "sm_50" if old else target


def runs(code: str, target: str) -> bool:
    """Return whether code for one target runs on another: sm_80 on sm_86, sm_100f on sm_103a, sm_90a only on sm_90a.

    Source: PTX ISA, .target; ptxas 13.4, --gpu-name.
    """
    made, here = _target_named(code), target_named(target)  # a PTX text spells its target as ptxas expects it
    match made.suffix:
        case "a":
            return (made.number, made.suffix) == (here.number, here.suffix)
        case "f":
            return here.row.family == made.row.family and here.number >= made.number
        case _:
            return here.number >= made.number


def lacking(target: str, name: str, where: str = "") -> RefsimError | None:
    """Return the error for a unit or opcode that a target lacks because of its suffix or family; None if it has it.

    lacking("sm_90", "wgmma") says that wgmma is in sm_90a. Source: the feature's.
    """
    row = next((each for each in SPECIFIC_UNITS if each.covers(name)), None)
    here = target_named(target)
    if row is None or f"{here.row.name}{here.suffix}" in row.targets:
        return None
    what = f"{target} has no {row.what}"
    rule = f"{row.source}: {row.what} is in {', '.join(row.targets)}"
    return UnfitTargetError("wrong-target", what, where=where, rule=rule, help=_way_out(target, row.targets))


def _way_out(target: str, targets: tuple[str, ...]) -> str:
    """Return the help text: the name of this chip with all its features if that is enough, else another target."""
    own = [name for name in targets if target_named(name).number == target_named(target).number]
    return f"{own[-1]} is {target} with it" if own else f"name another target, such as {targets[-1]}"


def has(target: str, since: str) -> bool:
    """Return whether a target has an instruction that was introduced with the target `since`.

    An instruction of `sm_90` exists on every later target. An instruction of `sm_90a` or `sm_100f` exists on every
    later target with a suffix; wgmma, a unit of its own, does not. An instruction of `sm_100a` exists only on the `a`
    targets of its family: sm_103a has it, sm_100f and sm_120a do not. has("sm_90", "sm_90a") is False. Source: PTX ISA,
    target ISA notes of each instruction; ptxas 13.4 on all its forms.
    """
    here, suffix = target_named(target), since[-1] if since[-1] in "af" else ""
    number = int(since.removeprefix("sm_").rstrip("af"))
    if here.number < number or (suffix and not here.suffix):
        return False
    family = _BY_NUMBER[number].family if suffix == "a" else 0
    return not family or (here.suffix == "a" and here.row.family == family)
