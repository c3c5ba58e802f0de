"""`tidegate doctor`: one file a group of checks.

Each group has `gather`, which looks at the machine and returns facts, and `check`, a pure function from facts to
findings.
"""

from tidegate.control.doctor.findings import Finding, Level

__all__ = ["Finding", "Level"]
