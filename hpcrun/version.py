"""The version of hpcrun."""

__version__ = "0.1.0"
