"""A picture of a TMA box: the source of each element in the tensor and its place in shared memory."""

from typing import TYPE_CHECKING

import numpy as np

from refsim.cli.arguments import require_few
from refsim.render import ALERT, Document, Entry, Fact, Picture, Wording

if TYPE_CHECKING:
    from refsim.layouts.tma import Placement


def placed(found: "Placement") -> Document:
    """Return the picture; columns are the innermost dimension. Elements outside the tensor are marked."""
    width = found.shared_bytes.shape[-1]
    require_few(found.shared_bytes.size, "refsim.layouts.descriptor('tensormap').walk in Python has no such limit")
    shared, source = found.shared_bytes.reshape(-1, width), found.global_bytes.reshape(-1, width)
    inside = found.inside.reshape(-1, width)
    bank = shared // 4 % 32
    facts = (
        Fact("byte", shared.ravel().tolist(), "@"),
        Fact("bank", bank.ravel().tolist(), "b"),
        Fact("from_byte", [at if at >= 0 else "the fill" for at in source.ravel().tolist()]),
    )
    outside = int((~inside).sum())
    numbers = {
        "coordinates": list(found.coordinates),
        "shared_address": found.shared_address,
        "box_bytes": found.tensor_map.box_bytes,
        "transaction_bytes": found.transaction_bytes,
        "outside": outside,
        "pads": int(found.pads.size),
    }
    line = (
        f"{found.tensor_map.box_bytes} bytes from {found.shared_address:#x}, {found.transaction_bytes} of them counted by "
        f"the barrier; {outside} elements lie outside the tensor, {found.pads.size} bytes are pads"
    )
    picture = Picture(
        range(shared.shape[0]),
        range(width),
        facts,
        ("byte", "bank"),
        np.where(inside, bank, ALERT).ravel().tolist(),
        "bank",
        ("line", "element"),
        about=(Entry("swizzle", found.tensor_map.swizzle), Entry("type", found.tensor_map.data_type.name)),
    )
    return Document((Wording((line,), numbers), picture), "tensormap box", (found.tensor_map.source,))
