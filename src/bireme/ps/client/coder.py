"""A trainer's dense gradients as they go onto the wire, in the job's coding."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from bireme.core.errors import NumericError
from bireme.ps.plan import Layout, Slice
from bireme.ps.tree import Span
from bireme.ps.wire import codec
from bireme.spec.model import Wire

LOOK_EVERY = 16  # rounds between two looks at what the coding costs: a look walks over the gradient once more


class Coder:
    """Codes one shard's gradient at a time. What top_k holds back stays here, shard by shard."""

    def __init__(self, how: Wire, layout: Layout) -> None:
        codec.warm(how.gradients)
        self._how = how
        self._layout = layout
        self._size = sum(p.size for p in layout.parameters)
        self._residuals: dict[Span, codec.Residual] = {}
        self._halves = np.empty(0 if how.gradients == "top_k" else layout.size, np.uint16)
        self._picks: codec.Picks | None = None
        self._looks = 0
        self.error = 0.0  # how much of a gradient was changed or held back at most, as a share of its norm

    def take(self, span: Span, gradient: NDArray[np.float32], *, is_last: bool = False) -> None:
        """Code a gradient; `part` then gives the pieces. The last one of a pass holds nothing back."""
        is_look = self._looks % LOOK_EVERY == 0
        self._looks += 1
        if self._how.gradients == "top_k":
            residual = self._residuals.setdefault(span, codec.Residual(self._layout.size))
            count = self._layout.size if is_last else math.ceil(self._how.top_k * self._size)
            self._picks = residual.pick(gradient, count)
            if is_look:
                self.error = max(self.error, residual.error(self._picks))
            return
        assert self._how.gradients != "float32"
        overflows = codec.encode(self._how.gradients, gradient, self._halves)
        if overflows:
            worst = self._layout.name_at(int(np.abs(gradient).argmax()))
            raise NumericError(
                f"{overflows} elements of a gradient are too large for {self._how.gradients}, the largest in {worst}",
                fix="set `wire.gradients: bfloat16`, which has float32's range, or a gradient_clipping_threshold",
            )
        if is_look:
            decoded = np.empty_like(gradient)
            codec.decode(self._how.gradients, self._halves, decoded)
            self.error = max(self.error, codec.error_of(gradient, decoded))

    def part(self, part: Slice) -> NDArray[np.uint8] | NDArray[np.uint16]:
        if self._picks is not None:
            return codec.encode_picks(self._picks, part.begin, part.end)
        return self._halves[part.begin : part.end]
