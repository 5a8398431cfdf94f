"""The resource limits of each target: one entry per target, one function per rule.

The occupancy header of CUDA describes an SM. `sms` is the number of SMs of the named `chip`; `%nsmid` returns it and
co-residency counts with it. Sizes are bytes.
"""

from dataclasses import dataclass
from functools import lru_cache

from refsim.sources import CUDA_GUIDE, CUDA_HEADERS, CUDA_PRODUCTS, PTX, Source
from refsim.targets import target_named

MAX_THREADS = 1024
MAX_BLOCK = (1024, 1024, 64)
MAX_GRID = (2**31 - 1, 65_535, 65_535)
REGISTERS = 65_536  # of an SM, and all that a CTA may take
PARTITIONS = 4
REGISTER_UNIT = 256  # registers of a warp come in such pieces: steps of 8 a thread
SHARED_UNIT = 128
SHARED_RESERVED = 1024
MAX_STATIC_SHARED = 48 << 10
MAX_LOCAL = 512 << 10
PORTABLE_CLUSTER = 8
THREAD_SOURCE = CUDA_GUIDE["technical specifications per compute capability"]
SHARED_SOURCE = CUDA_GUIDE["shared memory per thread block: 48 KB, more by cudaFuncSetAttribute"]
CLUSTER_SOURCE = PTX["cluster dimension directives"]
PARAMETER_SOURCE = PTX["kernel function parameters: 4352 B, 32764 B from PTX 8.1 on sm_70 and newer"]


@dataclass(frozen=True)
class Limits:
    """The limits of one target.

    An SM has `warps`, `ctas` and `shared` bytes; `opt_in` is the most shared memory of one CTA. A cluster has at most
    `cluster` CTAs (0: the target has no clusters). `sms` is the number of SMs of the `chip` named.
    """

    target: str
    warps: int
    ctas: int
    shared: int
    opt_in: int
    cluster: int
    sms: int
    chip: str
    source: Source

    @property
    def number(self) -> int:
        """Return 90 for sm_90."""
        return _number(self.target)

    @property
    def reserved(self) -> int:
        """Return the bytes of shared memory that the system keeps of every CTA, since sm_80."""
        return SHARED_RESERVED if self.number >= 80 else 0


def _number(target: str) -> int:
    return target_named(target).number


def _row(target: str, warps: int, ctas: int, shared_kib: int, cluster: int, sms: int, chip: str) -> Limits:
    source = CUDA_GUIDE["technical specifications"] if target not in _BY_HEADER else CUDA_HEADERS["cuda_occupancy.h"]
    opt_in = (shared_kib << 10) - (SHARED_RESERVED if _number(target) >= 80 else 0)
    return Limits(target, warps, ctas, shared_kib << 10, opt_in, cluster, sms, chip, source)


# The guide has no column for these: CTAs and shared memory are from the header, warps from the previous target.
_BY_HEADER = ("sm_103", "sm_121")

LIMITS = (
    _row("sm_75", 32, 16, 64, 0, 40, "T4"),
    _row("sm_80", 64, 32, 164, 0, 108, "A100"),
    _row("sm_86", 48, 16, 100, 0, 84, "RTX A6000"),
    _row("sm_87", 48, 16, 164, 0, 16, "Jetson AGX Orin"),
    _row("sm_89", 48, 24, 100, 0, 142, "L40S"),
    _row("sm_90", 64, 32, 228, 16, 132, "H100 SXM, H200"),
    _row("sm_100", 64, 32, 228, 16, 148, "B200"),
    _row("sm_103", 64, 32, 228, 16, 148, "B300"),
    _row("sm_110", 48, 24, 228, 16, 20, "Jetson T5000"),
    _row("sm_120", 48, 24, 100, 8, 170, "RTX 5090"),
    _row("sm_121", 48, 24, 100, 8, 48, "GB10"),
)
CHIP_SOURCE = CUDA_PRODUCTS["number of multiprocessors"]


@lru_cache(maxsize=64)
def limits_of(target: str) -> Limits:
    """Return the limits of a target such as sm_90a; an unlisted target has those of the newest one before it. The
    oldest entry is sm_75."""
    number = _number(target)
    return [row for row in LIMITS if row.number <= max(number, LIMITS[0].number)][-1]


def parameter_limit(version: str, target: str) -> int:
    """Return how many bytes of parameters an entry may take: 32,764 since PTX 8.1 on sm_70 and newer, else 4,352."""
    major, _, minor = version.partition(".")
    is_new = major.isdigit() and minor.isdigit() and (int(major), int(minor)) >= (8, 1)
    return 32_764 if is_new and _number(target) >= 70 else 4_352


def round_up(number: int, step: int) -> int:
    """Return the least multiple of `step` that is not smaller: round_up(33, 32) = 64."""
    return -(-number // step) * step


def warp_registers(registers: int) -> int:
    """Return how many registers a warp occupies if each thread uses `registers`: 33 a thread take 40 x 32 = 1,280."""
    return round_up(32 * registers, REGISTER_UNIT)


def ctas_per_sm(limits: Limits, threads: int, shared_bytes: int, registers: int) -> int:
    """Return how many CTAs one SM holds at once, as warps, slots, registers and shared memory allow. Example: CTAs of
    1,024 threads with 32 registers: 2 an SM of sm_90. Source: cuda_occupancy.h."""
    warps = -(-threads // 32)
    per_partition = REGISTERS // PARTITIONS // warp_registers(max(registers, 1))
    return min(
        limits.warps // warps,
        limits.ctas,
        per_partition * PARTITIONS // warps,
        limits.shared // max(round_up(shared_bytes + limits.reserved, SHARED_UNIT), SHARED_UNIT),
    )


def total_shared(shared_bytes: int) -> int:
    """Return `%total_smem_size`: static and dynamic shared memory in units of 128 B, without the reserved part."""
    return round_up(shared_bytes, SHARED_UNIT)
