"""Row-level changes on Apache Iceberg tables, from Python, with Spark doing the data work."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from icefloe import errors
from icefloe.version import __version__

if TYPE_CHECKING:
    from icefloe.lake import Lake, connect
    from icefloe.results import DmlResult, ExpireResult, OrphansResult, RewriteManifestsResult
    from icefloe.table import Table
    from icefloe.writer import write

__all__ = [
    "DmlResult",
    "ExpireResult",
    "Lake",
    "OrphansResult",
    "RewriteManifestsResult",
    "Table",
    "__version__",
    "connect",
    "errors",
    "write",
]

# Imported on first use: Spark and PyIceberg take seconds to import, `icefloe --help` needs neither.
_MODULES = {
    "DmlResult": "icefloe.results",
    "ExpireResult": "icefloe.results",
    "OrphansResult": "icefloe.results",
    "RewriteManifestsResult": "icefloe.results",
    "Lake": "icefloe.lake",
    "Table": "icefloe.table",
    "connect": "icefloe.lake",
    "write": "icefloe.writer",
}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(_MODULES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def load_ipython_extension(shell: object) -> None:
    """`%load_ext icefloe`: SQL cells, `%%lake`."""
    import_module("icefloe.cli.magics").load(shell)


def unload_ipython_extension(shell: object) -> None:
    """`%unload_ext icefloe`."""
    import_module("icefloe.cli.magics").unload(shell)
