"""Computes numbers from the values of one column and constants, as a JVM does.

Additions, subtractions, multiplications and divisions of FLOAT and DOUBLE are those of IEEE 754 in
NumPy and in a JVM, so results are equal to the last bit. Integers are converted first, since
their operations may overflow.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

Operation = Literal["double", "negate", "abs", "add", "subtract", "multiply", "divide"]

_BINARY: Final[dict[str, np.ufunc]] = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "divide": np.divide,
}


class Step(NamedTuple):
    """One operation; ``constant`` is the second operand, or the first one if ``is_first``."""

    operation: Operation
    constant: float | None = None
    is_first: bool = False


def computed(values: NDArray[Any], steps: Sequence[Step]) -> NDArray[Any]:
    """Return the values after all steps, ``float32`` or ``float64``."""
    with np.errstate(all="ignore"):
        for step in steps:
            if step.operation == "double":
                values = values.astype(np.float64, copy=False)
            elif step.operation == "negate":
                values = np.negative(values)
            elif step.operation == "abs":
                values = np.abs(values)
            else:
                constant = values.dtype.type(step.constant)
                pair = (constant, values) if step.is_first else (values, constant)
                values = _BINARY[step.operation](*pair)
    return values
