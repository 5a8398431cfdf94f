"""Block formats: one entry for each pair of element format and scale format that block-scaled tensor cores read."""

from dataclasses import dataclass

from refsim.errors import unknown
from refsim.formats import E2M1, E2M3, E3M2, E4M3, E5M2, E8M0, UE4M3, Format
from refsim.render.cards import Facts, NamedCard
from refsim.sources import CUBLAS, OCP_MX, Source


@dataclass(frozen=True, repr=False)
class BlockFormat(NamedCard):
    """Elements of one format; every `width` neighbors along K share one scale of another format (vector size, VS).

    With `two_levels` the whole tensor has a float32 factor too. mxfp4: 32 e2m1 and one e8m0, 17 bytes for 32 values.
    """

    name: str
    element: Format
    scale: Format
    width: int
    source: Source
    two_levels: bool = False
    aliases: tuple[str, ...] = ()

    def _repr_summary(self) -> str:
        return f"{self.name}: {self.width} {self.element} with one {self.scale}"

    def _facts(self) -> Facts:
        yield "elements", f"{self.element}, {self.width} with one scale"
        yield "scales", self.scale
        yield "of the tensor", "a float32 factor" if self.two_levels else ""
        yield "source", self.source


_TABLE = OCP_MX["table 1, concrete MX-compliant formats"]
BLOCK_FORMATS = (
    BlockFormat("mxfp8", E4M3, E8M0, 32, _TABLE, aliases=("mxfp8_e4m3",)),
    BlockFormat("mxfp8_e5m2", E5M2, E8M0, 32, _TABLE),
    BlockFormat("mxfp6_e2m3", E2M3, E8M0, 32, _TABLE),
    BlockFormat("mxfp6_e3m2", E3M2, E8M0, 32, _TABLE),
    BlockFormat("mxfp4", E2M1, E8M0, 32, _TABLE, aliases=("mxfp4_e2m1",)),
    BlockFormat("nvfp4", E2M1, UE4M3, 16, CUBLAS["CUBLASLT_MATMUL_MATRIX_SCALE_VEC16_UE4M3"], two_levels=True),
)
_BY_NAME = {name: row for row in BLOCK_FORMATS for name in (row.name, *row.aliases)}
MX_FORMATS = tuple(row.name for row in BLOCK_FORMATS if row.scale is E8M0)


def block_format(name: str | BlockFormat) -> BlockFormat:
    """Return the block format of a name, or the given `BlockFormat` itself.

    block_format("nvfp4").width is 16. Raises RefsimError `unknown-format`, with the nearest name. Source: the
    entry's.
    """
    if isinstance(name, BlockFormat):
        return name
    if str(name).lower() not in _BY_NAME:
        raise unknown("block format", str(name), list(_BY_NAME))
    return _BY_NAME[str(name).lower()]
