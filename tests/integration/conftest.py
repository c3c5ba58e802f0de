"""Fixtures of the tests that run real engines."""

from demo import demo_model

__all__ = ["demo_model"]
