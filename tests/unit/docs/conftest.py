"""What writes the pages are scripts beside each other, not a package: put their folder on the path."""

from __future__ import annotations

import sys
from pathlib import Path

DOCS = str(Path(__file__).resolve().parents[3] / "docs")
if DOCS not in sys.path:
    sys.path.append(DOCS)
