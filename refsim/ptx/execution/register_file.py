"""The registers of all lanes as data: an array per slot, and what is known of each beside its bits."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.ptx.execution.masks import Mask


@dataclass
class Registers:
    """One array per slot: (lanes,) or (1,); `owned` tells whether it may be written in place, `slots` who is kept where.

    `unwritten` tells, of the registers that may be read before they are written, which lanes have not written them;
    `masks` which of their bits are undefined, by slot, where that is followed.
    """

    slots: list[int]
    arrays: list[NDArray[Any]]
    owned: list[bool]
    unwritten: dict[int, NDArray[np.bool_]] = field(default_factory=dict)
    masks: dict[int, Mask] = field(default_factory=dict)
