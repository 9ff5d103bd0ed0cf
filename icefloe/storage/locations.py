"""Locations of files, as engines spell them and in a form that can be compared.

Nothing is decoded: `%20` in an Iceberg location is three characters of a file's name. `spellings`
has the other files that a location may mean.
"""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from urllib.parse import unquote

from icefloe.errors import StorageError
from icefloe.storage.filesystem import OBJECT_STORES

LOCAL = "file"
_URI = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]+):(?://([^/]*))?(/.*)?", re.DOTALL)
_ALIASES = {
    "s3a": "s3",
    "s3n": "s3",
    "gcs": "gs",
    "abfss": "abfs",
    "wasb": "abfs",
    "wasbs": "abfs",
}
_AZURE_BLOB, _AZURE_DFS = ".blob.core.windows.net", ".dfs.core.windows.net"
_QUERY = re.compile(r"[?#].*", re.DOTALL)
_STRIPPED = re.compile(r"[\t\r\n]")  # by Python's URL parser, which PyIceberg uses
# What Java's URI leaves unquoted in a path; Spark spells `_metadata.file_path` that way.
_QUOTED = re.compile(r"[^A-Za-z0-9_\-!.~'()*,;:$&+=/@\u0080-\U0010ffff]")


# -------------------------------------------------------------------------------------------------
# Locations for Spark


def local_uri(path: str | Path) -> str:
    """The location of an absolute path on a disk of this machine."""
    return f"{LOCAL}://{path}"


def spark_location(location: str) -> str:
    """A location as Spark reads it: `s3a` for `s3`, `file` where it has no scheme."""
    if "://" not in location and not location.startswith(f"{LOCAL}:"):
        return local_uri(location)
    scheme, rest = location.split(":", 1)
    return f"s3a:{rest}" if scheme in ("s3", "s3n") else location


def spark_uri(location: str) -> str:
    """A location as `_metadata.file_path` spells it, to compare with what Spark reads."""
    scheme, rest = spark_location(location).split(":", 1)
    authority = ""
    if rest.startswith("//"):
        authority, _, path = rest[2:].partition("/")
        rest = f"/{path}"
    path = re.sub(r"/+", "/", rest)
    quoted = _QUOTED.sub(lambda m: "".join(f"%{b:02X}" for b in m[0].encode()), path)
    return f"{scheme}://{authority}{quoted}" if authority else f"{scheme}:{quoted}"


# -------------------------------------------------------------------------------------------------
# Names: one for each file, however an engine spells its location


@dataclass(frozen=True, slots=True)
class Name:
    """A location: scheme, bucket or host, and path."""

    scheme: str
    authority: str
    path: str

    def __str__(self) -> str:
        return f"{self.scheme}://{self.authority}{self.path}"

    @property
    def last(self) -> str:
        """The file's name without its folder."""
        return self.path.rpartition("/")[2]

    @property
    def is_local(self) -> bool:
        """Whether the file is on a disk of this machine."""
        return self.scheme == LOCAL and not self.authority

    @property
    def decoded(self) -> Name:
        """The name with `%20` decoded, as engines do that parse a location as a URL."""
        return replace(self, path=_plain(unquote(self.path))) if "%" in self.path else self

    @property
    def spellings(self) -> frozenset[Name]:
        """Every file that an engine may open for this location."""
        as_url = _STRIPPED.sub("", _QUERY.sub("", self.path))
        cut = self if as_url == self.path else replace(self, path=_plain(as_url))
        return frozenset((self, self.decoded, cut, cut.decoded))

    @property
    def is_ambiguous(self) -> bool:
        """Whether PyIceberg, which parses URLs, may open another file than other engines."""
        return _QUERY.search(self.path) is not None or _STRIPPED.search(self.path) is not None

    @property
    def real(self) -> Name:
        """The name with symbolic links resolved, if it is local."""
        return replace(self, path=os.path.realpath(self.path)) if self.is_local else self

    def below(self, relative: str) -> Name:
        """A name inside this folder."""
        return replace(self, path=f"{self.path.rstrip('/')}/{relative}")

    def holds(self, other: Name) -> bool:
        """Whether `other` is this folder, or inside it."""
        same_store = (self.scheme, self.authority) == (other.scheme, other.authority)
        return same_store and f"{other.path}/".startswith(f"{self.path.rstrip('/')}/")


def name_of(location: str) -> Name:
    """The name of a location; raises StorageError for a relative path."""
    if location.startswith("/"):
        return Name(LOCAL, "", _plain(location))
    uri = _URI.fullmatch(location)
    if uri is None:
        raise StorageError(
            f"The location {location!r} is neither a URI nor an absolute path, so it cannot be "
            "compared with other files. Nothing was deleted."
        )
    scheme, authority, path = uri[1].lower(), uri[2] or "", uri[3] or "/"
    scheme = _ALIASES.get(scheme, scheme)
    if scheme == LOCAL and authority == "localhost":
        authority = ""
    if scheme == "abfs" and authority.endswith(_AZURE_BLOB):
        authority = f"{authority.removesuffix(_AZURE_BLOB)}{_AZURE_DFS}"
    return Name(scheme, authority, _plain(path))


def _plain(path: str) -> str:
    return posixpath.normpath(re.sub(r"/+", "/", path))


# -------------------------------------------------------------------------------------------------
# Whether a file is one that a table refers to, also under another name


@dataclass(frozen=True)
class KnownFiles:
    """Files that a table's metadata refers to, under every spelling of their names."""

    names: frozenset[Name]

    @classmethod
    def of(cls, names: Iterable[Name]) -> KnownFiles:
        """The files of these names."""
        return cls(frozenset(spelling for name in names for spelling in name.spellings))

    def has(self, name: Name) -> bool:
        """Whether `name` provably is one of the files."""
        if not self.names.isdisjoint(name.spellings):
            return True
        inode = _inode(name)
        return inode is not None and inode in self._inodes

    def lookalike(self, name: Name, folder: Name) -> Name | None:
        """A file outside `folder` that may be `name`: named alike, and not provably another."""
        for other in self._by_last.get(name.last, ()):
            if not folder.holds(other) and not _are_distinct(name, other):
                return other
        return None

    @cached_property
    def _inodes(self) -> frozenset[tuple[int, int]]:
        inodes = (_inode(name) for name in self.names)
        return frozenset(inode for inode in inodes if inode is not None)

    @cached_property
    def _by_last(self) -> dict[str, list[Name]]:
        by_last: dict[str, list[Name]] = {}
        for name in self.names:
            by_last.setdefault(name.last, []).append(name)
        return by_last


def _inode(name: Name) -> tuple[int, int] | None:
    """Device and inode of a local file; None for other files, and if it cannot be read."""
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
        first, second = _inode(one), _inode(other)
        return first is not None and second is not None and first[1] != second[1]
    same_store = (one.scheme, one.authority) == (other.scheme, other.authority)
    return same_store and one.scheme in OBJECT_STORES
