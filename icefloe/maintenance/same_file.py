"""Whether a file is one of those that something refers to, also under another name.

Local files are compared by device and inode, which sees through symbolic links, hard links and bind
mounts. Elsewhere two names of one file are suspected where the files are called the same.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from icefloe.maintenance.names import Name

# Stores in which two keys of one bucket are always two objects.
_OBJECT_STORES = frozenset({"s3", "gs", "abfs", "oss"})


@dataclass(frozen=True)
class KnownFiles:
    """Files that a table's metadata leads to, under every spelling of their names."""

    names: frozenset[Name]

    @classmethod
    def of(cls, names: Iterable[Name]) -> KnownFiles:
        """The files of these names."""
        return cls(frozenset(spelling for name in names for spelling in name.spellings))

    def has(self, name: Name) -> bool:
        """Whether `name` provably is one of the files."""
        if not self.names.isdisjoint(name.spellings):
            return True
        found = _inode(name)
        return found is not None and found in self._inodes

    def lookalike(self, name: Name, folder: Name) -> Name | None:
        """A file outside `folder` that may be `name`: called the same, and not provably another."""
        for other in self._by_last.get(name.last, ()):
            if not folder.holds(other) and not _are_distinct(name, other):
                return other
        return None

    @cached_property
    def _inodes(self) -> frozenset[tuple[int, int]]:
        found = (_inode(name) for name in self.names)
        return frozenset(inode for inode in found if inode is not None)

    @cached_property
    def _by_last(self) -> dict[str, list[Name]]:
        found: dict[str, list[Name]] = {}
        for name in self.names:
            found.setdefault(name.last, []).append(name)
        return found


def _inode(name: Name) -> tuple[int, int] | None:
    """Device and inode of a local file; None when it is elsewhere or cannot be looked at."""
    if not name.is_local:
        return None
    try:
        status = Path(name.path).stat()
    except (OSError, ValueError):
        return None
    return status.st_dev, status.st_ino


def _are_distinct(one: Name, other: Name) -> bool:
    """Whether two names provably mean two files.

    A network file system that is mounted twice has two devices and the same inodes.
    """
    if one.is_local and other.is_local:
        found, theirs = _inode(one), _inode(other)
        return found is not None and theirs is not None and found[1] != theirs[1]
    same_store = (one.scheme, one.authority) == (other.scheme, other.authority)
    return same_store and one.scheme in _OBJECT_STORES
