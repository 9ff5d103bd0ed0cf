"""The version of the installed package."""

from __future__ import annotations

__version__ = "0.1.0"
