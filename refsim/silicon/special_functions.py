"""What was recorded of the special functions (gpu/probes/record_special_functions.py), and how it is replayed.

A GPU gave digests of all 65,536 chunks of a form. What is stored is one word for 16 chunks, a group of 2^20 patterns: the
sum of their digests, each with the weight of its place. So a group is compared as surely as a chunk is, in a sixteenth of
the room.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from refsim.silicon.vectors import CHUNK, chunk_patterns, digest, recordings, weights

STEM = "special_functions"
CHUNKS_OF_A_GROUP = 16
GROUPS = CHUNK // CHUNKS_OF_A_GROUP


def folded(digests: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """One word for every 16 digests: of 65,536 chunks whose results are all 1 the first is 0x73044388b74387f8."""
    return np.asarray(digests.reshape(-1, CHUNKS_OF_A_GROUP) @ weights()[:CHUNKS_OF_A_GROUP])


def recorded(form: str, device: str = "h200") -> NDArray[np.uint64]:
    """The 4,096 words of a form over all its inputs: recorded("rcp_approx_ftz_f32")."""
    stored = recordings(STEM, device)
    row = stored[form]
    words = row.arrays["groups"]
    return np.asarray(words + recorded(row.facts["less"], device) if row.facts["less"] else words)


def replayed(function: Callable[[NDArray[np.uint32]], NDArray[np.unsignedinteger]], group: int) -> np.uint64:
    """The word of a group as a function on words has it."""
    chunks = range(group * CHUNKS_OF_A_GROUP, (group + 1) * CHUNKS_OF_A_GROUP)
    return np.uint64(folded(np.array([digest(function(chunk_patterns(each))) for each in chunks]))[0])
