"""Locations in a form that can be compared: one file, one name, however an engine spells it.

Nothing is decoded: `%20` in an Iceberg location is three characters of a file's name.
"""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass, replace
from urllib.parse import unquote

from icefloe.errors import StorageError

_URI = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]+):(?://([^/]*))?(/.*)?", re.DOTALL)
_SAME = {"s3a": "s3", "s3n": "s3", "gcs": "gs"}


@dataclass(frozen=True, slots=True)
class Name:
    """A location: scheme, bucket or host, and path."""

    scheme: str
    authority: str
    path: str

    def __str__(self) -> str:
        return f"{self.scheme}://{self.authority}{self.path}"

    @property
    def decoded(self) -> Name:
        """The name with `%20` read as a blank, as engines do that take a location for a URL."""
        return replace(self, path=unquote(self.path)) if "%" in self.path else self

    def below(self, relative: str) -> Name:
        """A name inside this folder."""
        return replace(self, path=f"{self.path.rstrip('/')}/{relative}")

    def holds(self, other: Name) -> bool:
        """Whether `other` is this folder, or inside it."""
        here = (self.scheme, self.authority) == (other.scheme, other.authority)
        return here and f"{other.path}/".startswith(f"{self.path.rstrip('/')}/")


def name_of(location: str) -> Name:
    """The name of a location; raises StorageError for one that says not where it is."""
    if location.startswith("/"):
        return Name("file", "", _plain(location))
    found = _URI.fullmatch(location)
    if found is None:
        raise StorageError(
            f"The location {location!r} is neither a URI nor an absolute path, so it cannot be "
            "compared with the files there are. Nothing was deleted."
        )
    scheme, authority, path = found[1].lower(), found[2] or "", found[3] or "/"
    scheme = _SAME.get(scheme, scheme)
    if scheme == "file":
        return Name("file", "" if authority == "localhost" else authority, _plain(path))
    return Name(scheme, authority, re.sub(r"/+", "/", path))


def _plain(path: str) -> str:
    return posixpath.normpath(re.sub(r"/+", "/", path))
