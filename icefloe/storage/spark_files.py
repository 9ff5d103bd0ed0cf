"""How Spark reads files of object stores: options of a read, and the names of files in it.

Hadoop has one connection for each scheme and bucket of a process, made with the settings of its
first user. Each set of options therefore has a scheme of its own: two catalogs may have buckets of
the same name, and a catalog may vend other credentials for each table, or new ones while a
statement runs. Options of a read are all that Spark Connect has.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from pyiceberg.io import FileIO

from icefloe.storage.file_io import StoreFileIO, is_s3
from icefloe.storage.locations import spark_location
from icefloe.storage.s3 import S3Options, s3a_settings

_S3A = "s3a"
_DIGITS = 12
_OWN = re.compile(rf"\b{_S3A}-[0-9a-f]{{{_DIGITS}}}(?=://)")
_LOCATION = re.compile(r"(\w+)://([^/]+)(.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Connector:
    """What Spark needs for a scheme: a class of Hadoop's, and the packages that have it."""

    scheme: str
    file_system: str
    package: str  # `{hadoop}`: the version of Spark's Hadoop


# Those of Google and Microsoft are not tested.
CONNECTORS = {
    _S3A: Connector(
        _S3A, "org.apache.hadoop.fs.s3a.S3AFileSystem", "org.apache.hadoop:hadoop-aws:{hadoop}"
    ),
    "gs": Connector(
        "gs",
        "com.google.cloud.hadoop.fs.gcs.GoogleHadoopFileSystem",
        "com.google.cloud.bigdataoss:gcs-connector:4.0.9",
    ),
    "abfss": Connector(
        "abfss",
        "org.apache.hadoop.fs.azurebfs.SecureAzureBlobFileSystem",
        "org.apache.hadoop:hadoop-azure:{hadoop}",
    ),
}


def connector_of(location: str) -> Connector | None:
    """The connector that Spark needs for a location; None for a disk, or a store unknown here."""
    return CONNECTORS.get(spark_location(location).partition(":")[0])


def connectors_of(properties: Mapping[str, str]) -> list[Connector]:
    """The connectors that the properties of a catalog ask for: by a location, or keys for S3."""
    texts = [text for text in properties.values() if isinstance(text, str) and "://" in text]
    named = {c.scheme: c for text in texts if (c := connector_of(text)) is not None}
    of_amazon = {str(properties.get("type")), str(properties.get("rest.signing-name"))}
    if any(name.startswith("s3.") for name in properties) or of_amazon & {"glue", "s3tables"}:
        named[_S3A] = CONNECTORS[_S3A]
    return list(named.values())


@dataclass(frozen=True, slots=True)
class SparkFiles:
    """Files as Spark reads them."""

    paths: tuple[str, ...]
    options: Mapping[str, str] = field(default_factory=dict, repr=False)


def spark_files(io: FileIO, locations: Sequence[str]) -> SparkFiles:
    """How Spark reads files of a table, with the credentials that are valid now."""
    paths = tuple(map(spark_location, locations))
    if not any(map(is_s3, locations)):
        return SparkFiles(paths)
    options = io.options if isinstance(io, StoreFileIO) else S3Options.of(io.properties)
    settings = s3a_settings(options)
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:_DIGITS]
    scheme, buckets, own = f"{_S3A}-{digest}", set(), []
    for path in paths:
        parts = _LOCATION.fullmatch(path)
        if parts is None or parts[1] != _S3A:
            own.append(path)
            continue
        buckets.add(parts[2])
        own.append(f"{scheme}://{parts[2]}{parts[3]}")
    given = {f"fs.{scheme}.impl": CONNECTORS[_S3A].file_system}
    for bucket in sorted(buckets):
        given |= {f"fs.s3a.bucket.{bucket}.{name}": value for name, value in settings.items()}
    return SparkFiles(tuple(own), given)


def file_path(locations: Iterable[str]) -> str:
    """The SQL of the URI of a row's file, as `spark_uri` spells it."""
    path = "_metadata.file_path"
    in_s3 = {is_s3(location) for location in locations}
    plain = f"concat('{_S3A}', substring({path}, {len(_S3A) + _DIGITS + 2}))"
    if in_s3 == {True}:
        return plain
    return path if True not in in_s3 else f"if(startswith({path}, '{_S3A}-'), {plain}, {path})"


def with_plain_schemes(text: str) -> str:
    """A message of Spark's with the locations that a table has."""
    return _OWN.sub("s3", text)
