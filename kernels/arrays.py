"""Types of numpy arrays by what they hold."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]


def record_type(*fields: tuple[Any, ...]) -> np.dtype[Any]:
    """Of the rows of a structured array with these (name, type), aligned as a C compiler would."""
    return np.dtype(list(fields), align=True)
