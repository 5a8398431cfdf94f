"""One tensor of a checkpoint: the values of a quantized weight, or the codes of any other tensor."""

from math import prod
from pathlib import Path
from types import MappingProxyType

import numpy as np

from refsim.checkpoints.reading import weights_of
from refsim.conversions import round_bits
from refsim.errors import RefsimError
from refsim.files import DEFAULT_MAX_BYTES, Stored
from refsim.files.codes import require_room
from refsim.files.parts import source
from refsim.formats import E8M0, F32, UE4M3, ElementType


def load_tensor(
    path: Path, format: ElementType | None, key: str | None, layout: str | None, *, scales: bool = False
) -> tuple[Stored | None, str]:
    """Return a tensor of a file, a folder or an index, and a line that names the layout of a quantized weight.

    A weight becomes its values in f32, each rounded once, or the codes of its `scales`, unless `format` asks for codes.
    The one weight of a file needs no `key`. None stands for a tensor of one safetensors file that is no weight:
    `files.load` reads it. Raises RefsimError as `files.load` and `weights_of` do.
    """
    with source(path) as file:
        if format is None or layout is not None:
            weights = weights_of(file, layout)
            if key is None and len(weights) == 1:
                key = next(iter(weights))
            if key in weights:
                weight = weights[key]
                if scales and "scales" in weight.parts:
                    region = weight.parts["scales"]
                    form = region.format or (UE4M3 if weight.layout.element is None else E8M0)
                    raw = np.frombuffer(
                        file.take(region, 0, region.end - region.begin), form.code_dtype.newbyteorder("<")
                    )
                    told = f"{key}: scales by layout {weight.layout} ({weight.why})"
                    return Stored(key, raw.astype(form.code_dtype).reshape(region.shape), form, "safetensors"), told
                require_room(4 * prod(weight.shape), DEFAULT_MAX_BYTES, f"{path}, tensor {key[:80]!r}")
                codes = round_bits(weight.values(0, weight.rows[0]), F32).reshape(weight.shape)
                told = f"{key}: values by layout {weight.layout} ({weight.why})"
                return Stored(key, codes, F32, "safetensors", MappingProxyType(dict(file.metadata))), told
        if path.suffix.lower() == ".safetensors":
            return None, ""
        if key is None or key not in file.regions:
            known = ", ".join(repr(each[:80]) for each in list(file.regions)[:8])
            what = "a checkpoint of several tensors" if key is None else f"no tensor is called {key[:80]!r}"
            code = "key-needed" if key is None else "unknown-key"
            raise RefsimError(
                code, what, where=str(path), rule=f"{len(file.regions)} tensors: {known}", help="FILE:KEY"
            )
        region = file.regions[key]
        row = region.format or format
        if row is None or (region.end - region.begin) * 8 != prod(region.shape) * 8 * row.code_dtype.itemsize:
            what = f"tensor {key[:80]!r} is {region.dtype}, which does not say what its codes are"
            raise RefsimError("format-needed", what, where=str(path), help="give -t FORMAT")
        require_room(region.end - region.begin, DEFAULT_MAX_BYTES, f"{path}, tensor {key[:80]!r}")
        raw = np.frombuffer(file.take(region, 0, region.end - region.begin), row.code_dtype.newbyteorder("<"))
        codes = raw.astype(row.code_dtype).reshape(region.shape)
        return Stored(key, codes, row, "safetensors", MappingProxyType(dict(file.metadata))), ""
