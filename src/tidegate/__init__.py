"""Tidegate takes a small language model into production on the machines a team already has."""

__version__ = "0.1.0"
