"""What every test run gets: a reproducible hypothesis, and no descriptor left behind."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile(
    "stopkit",
    deadline=None,
    derandomize=True,
    max_examples=60,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.register_profile(
    "deep", parent=settings.get_profile("stopkit"), max_examples=2000, derandomize=False
)
settings.load_profile(os.environ.get("STOPKIT_HYPOTHESIS", "stopkit"))


def _descriptors() -> set[str]:
    return set(os.listdir("/proc/self/fd")) if sys.platform == "linux" else set()


@pytest.fixture(autouse=True)
def no_descriptor_is_left() -> Iterator[None]:
    before = _descriptors()
    yield
    left = {fd for fd in _descriptors() - before if os.path.exists(f"/proc/self/fd/{fd}")}
    assert not left, f"descriptors left open: {sorted(left)}"
