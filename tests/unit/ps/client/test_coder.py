from __future__ import annotations

import numpy as np
import pytest

from bireme.core.errors import NumericError
from bireme.ps.client.coder import Coder
from bireme.ps.plan import Layout
from bireme.ps.tree import Span
from bireme.spec.model import Parameter, Wire


def test_a_gradient_too_large_for_float16_names_its_parameter() -> None:
    layout = Layout([Parameter(name="small", shape=(20,)), Parameter(name="large", shape=(5,))])
    gradient = np.zeros(layout.size, np.float32)
    gradient[layout.offsets["large"] + 1] = -1e6
    coder = Coder(Wire(gradients="float16"), layout)
    with pytest.raises(NumericError, match="1 elements of a gradient are too large for float16, the largest in large"):
        coder.take(Span(0, 1), gradient, is_last=False)
