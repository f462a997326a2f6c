"""Hypothesis profiles: 200 examples by default, 10,000 with HYPOTHESIS_PROFILE=long. Both replay exactly."""

from __future__ import annotations

import os

from hypothesis import settings

settings.register_profile("default", max_examples=200, deadline=None, derandomize=True)
settings.register_profile("long", max_examples=10_000, deadline=None, derandomize=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))
