"""Being in the user's world for a while: their working directory and their random numbers.

Both are global to the process, so they are borrowed for as short as possible and always given back.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from bireme.core.errors import DataError


class UserGenerators:
    """The global generators as one user script sees them, kept between its turns."""

    def __init__(self, seed: int) -> None:
        self._python = random.Random(seed).getstate()
        self._numpy = np.random.RandomState(seed % 2**32).get_state(legacy=False)

    @contextmanager
    def lent(self) -> Iterator[None]:
        """Lend our state to `random` and `numpy.random`, and take it back advanced."""
        python, numpy_ = random.getstate(), np.random.get_state(legacy=False)
        random.setstate(self._python)
        np.random.set_state(self._numpy)
        try:
            yield
        finally:
            self._python, self._numpy = random.getstate(), np.random.get_state(legacy=False)
            random.setstate(python)
            np.random.set_state(numpy_)


@contextmanager
def visiting(workdir: Path, generators: UserGenerators) -> Iterator[None]:
    """Run the body in the user's directory and with the user's random numbers; leaves no trace."""
    home = Path.cwd()
    try:
        os.chdir(workdir)
    except OSError as error:
        raise DataError(f"cannot work in {workdir}: {error.strerror}") from error
    try:
        with generators.lent():
            yield
    finally:
        os.chdir(home)
