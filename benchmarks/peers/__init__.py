"""The engines that are compared, by their names on the command line."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path

from benchmarks.peers.peer import Peer


@dataclass(frozen=True, slots=True)
class PeerSpec:
    """Where a peer's class is; imported only in the peer's own process."""

    module: str
    factory: str
    options: tuple[tuple[str, str], ...] = ()
    environment: str | None = None  # its own virtual environment, created by the Makefile
    has_jvm: bool = False  # is faster after several runs

    def make(self, folder: Path) -> Peer:
        """Create the peer, with its tables under `folder`."""
        factory: Callable[..., Peer] = getattr(import_module(self.module), self.factory)
        return partial(factory, **dict(self.options))(folder)

    def warm_ups(self, requested: int) -> int:
        """How many untimed runs of a statement to do: without a JVM, one is enough."""
        return requested if self.has_jvm else min(requested, 1)


OURS = "icefloe-"  # the prefix of icefloe's own peers
_ICEFLOE = ("benchmarks.peers.icefloe_peer", "IcefloePeer")
_DELTARS = ("benchmarks.peers.deltars", "DeltaRsPeer")
_ICEBERG = ("benchmarks.peers.iceberg_peer", "IcebergPeer")
_PYICEBERG = ("benchmarks.peers.pyiceberg_peer", "PyIcebergPeer")
_SAIL = ("benchmarks.peers.sail_peer", "SailPeer")


def _icefloe(mode: str) -> PeerSpec:
    return PeerSpec(*_ICEFLOE, (("mode", mode),), has_jvm=True)


def _iceberg(mode: str) -> PeerSpec:
    return PeerSpec(*_ICEBERG, (("mode", mode),), environment=".venv-iceberg", has_jvm=True)


def _deltars(*options: tuple[str, str]) -> PeerSpec:
    return PeerSpec(*_DELTARS, options, environment=".venv-deltars")


def _sail(table_format: str, mode: str) -> PeerSpec:
    options = (("table_format", table_format), ("mode", mode))
    return PeerSpec(*_SAIL, options, environment=".venv-sail")


def _pyiceberg(update_by: str) -> PeerSpec:
    return PeerSpec(*_PYICEBERG, (("update_by", update_by),), environment=".venv-pyiceberg")


PEERS = {
    "icefloe-cow": _icefloe("copy-on-write"),
    "icefloe-mor": _icefloe("merge-on-read"),
    "iceberg-cow": _iceberg("copy-on-write"),
    "iceberg-mor": _iceberg("merge-on-read"),
    "deltars": _deltars(),  # its defaults: DELETE writes zstd, all else Snappy
    "deltars-zstd": _deltars(("compression", "ZSTD")),  # the default of Iceberg
    "deltars-collected": _deltars(("source", "collected")),
    "sail-cow": _sail("delta", "copy-on-write"),
    "sail-mor": _sail("iceberg", "merge-on-read"),
    "pyiceberg": _pyiceberg("upsert"),
    "pyiceberg-overwrite": _pyiceberg("overwrite"),
}
DEFAULT_PEERS = (
    "icefloe-cow",
    "icefloe-mor",
    "iceberg-cow",
    "iceberg-mor",
    "deltars",
    "sail-cow",
    "sail-mor",
    "pyiceberg",
)
