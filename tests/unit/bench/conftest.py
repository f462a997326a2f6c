"""Benches are scripts beside each other, not a package: put their folder on the path."""

from __future__ import annotations

import sys
from pathlib import Path

BENCH = str(Path(__file__).resolve().parents[3] / "bench")
if BENCH not in sys.path:
    sys.path.append(BENCH)
