"""A trainer's own memory: gradient rows that lanes of the same machine read, parameters that they write.

Gradients: one row per subtree this trainer sends, all in one segment that is handed to local
lanes. Parameters: where lanes share memory, two sets, because a lane keeps two buffers and each
round's parameters appear in the one that is due; slices of remote lanes are received into the
same places. Without local lanes one set is enough.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from bireme.core.errors import StorageError
from bireme.ps.plan import Layout, Slice
from bireme.ps.tree import Span
from bireme.ps.wire.shared_memory import Region, close_quietly, make_segment


class TrainerMemory:
    """Flat vectors for one trainer: `row(span)` to write gradients to, `values(round)` to compute from."""

    def __init__(self, layout: Layout, spans: Sequence[Span], *, is_shared: bool) -> None:
        self.layout = layout
        self.spans = tuple(spans)
        nbytes = 4 * layout.size
        grads = Region(nbytes * len(self.spans))
        sets = [Region(nbytes)]
        self.fd = -1
        if is_shared:
            # Where there is too little shared memory, everything goes through sockets.
            with contextlib.suppress(StorageError):
                self.fd = make_segment("gradients", nbytes * len(self.spans))
                grads.map(0, nbytes * len(self.spans), self.fd, 0, is_writable=True)
                sets.append(Region(nbytes))
        self._finish = weakref.finalize(self, close_quietly, self.fd)
        self._sets = sets
        self._rows = {span: grads.floats(layout.size, nbytes * i) for i, span in enumerate(self.spans)}
        self._values = [region.floats(layout.size) for region in sets]

    @property
    def is_shared(self) -> bool:
        return self.fd >= 0

    def row(self, span: Span) -> NDArray[np.float32]:
        return self._rows[span]

    def values(self, round_: int) -> NDArray[np.float32]:
        # By parity, as a lane's buffers: a lane writes one set while the model is computed from the other.
        return self._values[round_ % len(self._values)]

    def adopt(self, part: Slice, fd: int) -> None:
        """Let a lane's two buffers be this slice of the two sets; they can only be read here."""
        for number, region in enumerate(self._sets):
            region.map(4 * part.begin, 4 * len(part), fd, number * 4 * len(part), is_writable=False)

    def close(self) -> None:
        """Close the descriptor; what is mapped stays as long as arrays over it."""
        self._finish.detach()
        close_quietly(self.fd)
        self.fd = -1
