"""Outputs and operands as a user has them: codes of their format's own width."""

import numpy as np
from numpy.typing import ArrayLike

from refsim.causes.rows import Codes
from refsim.errors import RefsimError
from refsim.formats import Format
from refsim.integers import array_of
from refsim.typed_arrays import held_codes


def codes_of(name: str, given: ArrayLike, format: str | Format | None) -> tuple[Codes, Format]:
    """Codes and their format: the one that is named or that the dtype says. Raises RefsimError where the two disagree."""
    words, row = held_codes(array_of(name, given), format, name)
    codes = np.asarray(words)
    if codes.dtype != row.code_dtype:
        raise RefsimError("code-type", f"{name} holds {codes.dtype}, codes of {row} are {row.code_dtype}")
    return codes, row
