"""Types of the arrays that hold registers, addresses and masks of all lanes."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Bools = NDArray[np.bool_]
