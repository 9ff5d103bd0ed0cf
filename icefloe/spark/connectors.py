"""Hadoop's connectors for object stores, which Spark comes without.

A session that icefloe starts gets the one for S3 from Maven, without the parts of Amazon's SDK that
reading does not need: 13 MB instead of 700. A session that runs already cannot get classes.
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.find_spark_home import _find_spark_home
from pyspark.sql import SparkSession
from pyspark.sql import types as T

from icefloe.errors import SetupError
from icefloe.storage.spark_files import Connector

log = logging.getLogger("icefloe")

# Amazon's SDK that a version of Hadoop was built with. For others, Maven finds the whole SDK.
_SDK = {"3.4.1": "2.24.6", "3.4.2": "2.29.52", "3.4.3": "2.35.4", "3.5.0": "2.35.4"}
_SDK_MODULES = ("s3", "s3-transfer-manager", "sts", "apache-client", "netty-nio-client")
# What Spark has, in the versions that it was built with.
_OF_SPARK = (
    "org.slf4j:slf4j-api",
    "commons-codec:commons-codec",
    "commons-logging:commons-logging",
    "org.apache.httpcomponents:httpclient",
    "org.apache.httpcomponents:httpcore",
    *(
        f"io.netty:netty-{module}"
        for module in (
            "buffer",
            "codec",
            "codec-base",
            "codec-compression",
            "codec-http",
            "codec-http2",
            "common",
            "handler",
            "resolver",
            "transport",
            "transport-classes-epoll",
            "transport-native-unix-common",
        )
    ),
)
_PROBE = "icefloe-probe"
_PACKAGES, _EXCLUDES, _JARS = "spark.jars.packages", "spark.jars.excludes", "spark.jars"
_checked: WeakKeyDictionary[Any, set[str]] = WeakKeyDictionary()


def session_settings(connectors: Iterable[Connector]) -> dict[str, str]:
    """Settings of a session that icefloe starts: jars of a former download, or packages to get."""
    needed = [c for c in connectors if c.scheme == "s3a"]
    version = _bundled_hadoop()
    if not needed or version is None or _is_configured():
        return {}
    package = needed[0].package.format(hadoop=version)
    if jars := _former_download(package):
        return {_JARS: ",".join([*_configured(_JARS), *jars])}
    log.warning(
        "Spark has no classes for S3: %s and its dependencies are downloaded from Maven, once.",
        package,
    )
    packages, excludes = [package], []
    if sdk := _SDK.get(version):
        packages += [f"software.amazon.awssdk:{module}:{sdk}" for module in _SDK_MODULES]
        excludes = ["software.amazon.awssdk:bundle", *_OF_SPARK]
    settings = {
        _PACKAGES: ",".join([*_configured(_PACKAGES), *packages]),
        _EXCLUDES: ",".join([*_configured(_EXCLUDES), *excludes]),
    }
    return {name: value for name, value in settings.items() if value}


def remember_download(session: SparkSession, settings: dict[str, str]) -> None:
    """Note the jars that a session was started with, so that the next one asks nobody for them."""
    if _PACKAGES not in settings:
        return
    package = next(p for p in settings[_PACKAGES].split(",") if ":hadoop-aws:" in p)
    # Not a setting of the session, but of the application: Spark adds the jars that it found.
    jars = str(session.sparkContext.getConf().get(_JARS, "")).split(",")
    paths = [jar.removeprefix("file://") for jar in jars if jar.startswith(("file://", "/"))]
    paths = [path for path in paths if path not in _configured(_JARS)]
    try:
        _note().parent.mkdir(parents=True, exist_ok=True)
        _note().write_text(json.dumps({"package": package, "jars": paths}))
    except OSError as error:
        log.debug("The jars of %s are not noted: %s", package, error)


def _former_download(package: str) -> list[str]:
    """The jars of a package, if they were downloaded before and are still there."""
    try:
        noted = json.loads(_note().read_text())
        jars = [str(jar) for jar in noted["jars"]]
        if noted["package"] == package and jars and all(Path(jar).is_file() for jar in jars):
            return jars
    except (OSError, ValueError, KeyError, TypeError):
        pass
    return []


def _note() -> Path:
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "icefloe" / "s3-jars.json"


def _bundled_hadoop() -> str | None:
    """The version of Hadoop's jars in Spark's folder; None if Spark has none there."""
    folder = Path(_find_spark_home()) / "jars"
    found = (re.search(r"hadoop-client-api-(\d[\w.]*)\.jar$", p.name) for p in folder.glob("*.jar"))
    return next((match[1] for match in found if match), None)


def _is_configured() -> bool:
    """Whether the environment or Spark's own folder provide the classes."""
    texts = [os.environ.get("PYSPARK_SUBMIT_ARGS", ""), _defaults()]
    in_folder = (Path(_find_spark_home()) / "jars").glob("hadoop-aws-*.jar")
    return any("hadoop-aws" in text for text in texts) or any(in_folder)


def _defaults() -> str:
    """The text of `spark-defaults.conf`."""
    folder = os.environ.get("SPARK_CONF_DIR") or Path(_find_spark_home()) / "conf"
    try:
        return (Path(folder) / "spark-defaults.conf").read_text()
    except OSError:
        return ""


def _configured(setting: str) -> list[str]:
    """The entries of a setting in `spark-defaults.conf`, which the session's own would hide."""
    values = re.findall(rf"^\s*{re.escape(setting)}[\s=]+(\S+)", _defaults(), re.MULTILINE)
    return values[-1].split(",") if values else []


def check_connector(session: SparkSession, connector: Connector) -> None:
    """Raise SetupError if a session cannot read files of a scheme.

    The answer is that of Hadoop to a location without a bucket, which no store is asked about.
    """
    schemes = _checked.setdefault(session, set())
    if connector.scheme in schemes:
        return
    reader = session.read.schema(T.StructType().add("a", T.IntegerType()))
    try:
        reader = reader.option(f"fs.{_PROBE}.impl", connector.file_system)
        _ = reader.parquet(f"{_PROBE}:///a").schema
    except (PySparkException, Py4JJavaError) as answer:
        if "ClassNotFoundException" in str(answer) or "NoClassDefFound" in str(answer):
            raise _missing(session, connector) from None
    schemes.add(connector.scheme)


def _missing(session: SparkSession, connector: Connector) -> SetupError:
    version = session.sql("SELECT reflect('org.apache.hadoop.util.VersionInfo', 'getVersion')")
    package = connector.package.format(hadoop=version.collect()[0][0])
    return SetupError(
        f"The Spark session has no class for {connector.scheme} ({connector.file_system}), so it "
        "cannot read the table's files. Nothing was written. Jars cannot join a running session: "
        f"start it with spark.jars.packages = {package}. A session that icefloe starts has the "
        "class if the properties of connect() name the store, with s3.region for example."
    )
