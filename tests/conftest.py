"""Shared by all tests: where no test may be skipped (TIDEGATE_FORBID_SKIPS=1, as in CI), a skip is a failure."""

import os
from collections.abc import Generator

import pytest

FORBIDDEN = os.environ.get("TIDEGATE_FORBID_SKIPS") == "1"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if FORBIDDEN and report.skipped and not hasattr(report, "wasxfail"):
        report.outcome, report.longrepr = "failed", f"skips are forbidden here: {_reason(report)}"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    if FORBIDDEN and report.skipped:
        report.outcome, report.longrepr = "failed", f"skips are forbidden here: {_reason(report)}"
    return report


def _reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    return report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
