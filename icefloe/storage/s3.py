"""S3 and stores that are like it: what properties say of one, for PyArrow, Spark and boto3.

The properties are PyIceberg's, of a catalog, or of a table where a REST catalog vends credentials.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import lru_cache
from typing import Any, TypeVar
from urllib.parse import urlsplit

from pyarrow.fs import resolve_s3_region

from icefloe.errors import SetupError, StatementError
from icefloe.storage.filesystem import BoundedS3FileSystem, reading_object

N = TypeVar("N", int, float)
MAX_ATTEMPTS = "icefloe.io.max-attempts"
CONNECT_TIMEOUT, REQUEST_TIMEOUT = "s3.connect-timeout", "s3.request-timeout"
_ATTEMPTS, _CONNECT_S, _REQUEST_S = 4, 5.0, 10.0
_LEAST_S3A_S = 15.0
_REMOTE_SIGNING = "s3.remote-signing-enabled"
_EXPIRES = "s3.session-token-expires-at-ms"
_AWS = "us-east-1"  # where no region is known; stores that are not Amazon's ignore it

_S3A = "org.apache.hadoop.fs.s3a"
_STATIC = f"{_S3A}.SimpleAWSCredentialsProvider"
_TEMPORARY = f"{_S3A}.TemporaryAWSCredentialsProvider"
_ANONYMOUS = f"{_S3A}.AnonymousAWSCredentialsProvider"
_ROLE = f"{_S3A}.auth.AssumedRoleCredentialProvider"
_DEFAULT = "software.amazon.awssdk.auth.credentials.DefaultCredentialsProvider"


@dataclass(frozen=True, slots=True)
class S3Options:
    """How a store is reached; None and False where nothing is said."""

    endpoint: str | None = None
    region: str | None = None
    access_key: str | None = None
    secret_key: str | None = field(default=None, repr=False)
    session_token: str | None = field(default=None, repr=False)
    expires_at_ms: int | None = None  # the session token
    role_arn: str | None = None
    role_session: str | None = None
    anonymous: bool = False
    virtual_addressing: bool = False
    proxy: str | None = field(default=None, repr=False)  # may have a password
    attempts: int = _ATTEMPTS
    connect_timeout_s: float = _CONNECT_S
    request_timeout_s: float = _REQUEST_S

    @classmethod
    def of(cls, properties: Mapping[str, Any]) -> S3Options:
        """Read properties of a catalog or a table."""
        _refuse_remote_signing(properties)

        def first(*names: str) -> str | None:
            values = (properties.get(name) for name in names)
            return next((str(value) for value in values if value not in (None, "")), None)

        def flag(name: str) -> bool:
            return str(properties.get(name, "false")).lower() == "true"

        return cls(
            endpoint=first("s3.endpoint"),
            region=first("s3.region", "client.region"),
            access_key=first("s3.access-key-id", "client.access-key-id"),
            secret_key=first("s3.secret-access-key", "client.secret-access-key"),
            session_token=first("s3.session-token", "client.session-token"),
            expires_at_ms=positive(properties, _EXPIRES, int),
            role_arn=first("s3.role-arn", "client.role-arn"),
            role_session=first("s3.role-session-name", "client.role-session-name"),
            anonymous=flag("s3.anonymous"),
            virtual_addressing=flag("s3.force-virtual-addressing"),
            proxy=first("s3.proxy-uri"),
            attempts=positive(properties, MAX_ATTEMPTS, int) or _ATTEMPTS,
            connect_timeout_s=positive(properties, CONNECT_TIMEOUT, float) or _CONNECT_S,
            request_timeout_s=positive(properties, REQUEST_TIMEOUT, float) or _REQUEST_S,
        )

    @property
    def without_credentials(self) -> S3Options:
        """The same store, whoever asks."""
        return replace(
            self, access_key=None, secret_key=None, session_token=None, expires_at_ms=None
        )

    @property
    def path_style(self) -> bool:
        """Whether the bucket is part of the path, as most stores but Amazon's need it."""
        return self.endpoint is not None and not self.virtual_addressing


def positive(properties: Mapping[str, Any], name: str, kind: Callable[[Any], N]) -> N | None:
    """A number > 0 among properties; None if it is not set."""
    value = properties.get(name)
    if value in (None, ""):
        return None
    number: N | None
    try:
        number = kind(value)
    except (TypeError, ValueError):
        number = None
    if number is None or number <= 0:
        raise StatementError(f"Invalid value {value!r} for {name!r}: expected a number > 0")
    return number


def _refuse_remote_signing(properties: Mapping[str, Any]) -> None:
    signs = str(properties.get(_REMOTE_SIGNING, "false")).lower() == "true"
    if signs and not properties.get("s3.access-key-id"):
        raise SetupError(
            f"The catalog wants each request to be signed by itself ({_REMOTE_SIGNING} = true), "
            "which neither PyArrow nor Spark can do. Have it vend credentials for the warehouse, "
            "or connect with s3.access-key-id and s3.secret-access-key."
        )


# -------------------------------------------------------------------------------------------------
# PyArrow


@lru_cache(maxsize=64)
def filesystem_of(options: S3Options, bucket: str) -> BoundedS3FileSystem:
    """The file system of a store; its connections are shared by all that use the same options."""
    given = {
        "endpoint_override": options.endpoint,
        "region": _region(options, bucket),
        "access_key": options.access_key,
        "secret_key": options.secret_key,
        "session_token": options.session_token,
        "role_arn": options.role_arn,
        "session_name": options.role_session,
        "anonymous": options.anonymous or None,
        "force_virtual_addressing": options.virtual_addressing or None,
        "proxy_options": options.proxy,
        "connect_timeout": options.connect_timeout_s,
        "request_timeout": options.request_timeout_s,
    }
    return BoundedS3FileSystem(
        options.attempts, {name: value for name, value in given.items() if value is not None}
    )


def _region(options: S3Options, bucket: str) -> str:
    """The region of a bucket; Amazon is asked if neither it nor another store is named."""
    if options.region or options.endpoint:
        return options.region or _AWS
    try:
        return str(resolve_s3_region(bucket))
    except OSError:
        return _AWS


# -------------------------------------------------------------------------------------------------
# Spark: settings of Hadoop's s3a


def s3a_settings(options: S3Options) -> dict[str, str]:
    """Settings of s3a without their prefix, `fs.s3a.` or that of a bucket."""
    settings = {
        "attempts.maximum": "0",  # of the SDK below s3a, which retries itself
        # The default of Hadoop 3.5 keeps what it read in memory, and has retries of its own.
        "input.stream.type": "classic",
        # One less than elsewhere: Spark looks twice for a file that it reads alone, and waits for
        # each answer as long as Hadoop's least limit.
        "retry.limit": str(max(options.attempts - 2, min(options.attempts - 1, 1))),
        "retry.interval": "500ms",
        "retry.throttle.limit": str(options.attempts),
        "retry.throttle.interval": "500ms",
        "connection.establish.timeout": _milliseconds(options.connect_timeout_s),
        "connection.acquisition.timeout": _milliseconds(options.request_timeout_s),
        "connection.timeout": _milliseconds(options.request_timeout_s),
        **_s3a_credentials(options),
    }
    if options.endpoint is not None:
        settings["endpoint"] = options.endpoint
        settings["path.style.access"] = str(options.path_style).lower()
        settings["connection.ssl.enabled"] = str(not options.endpoint.startswith("http:")).lower()
    if options.region is not None or options.endpoint is not None:
        settings["endpoint.region"] = options.region or _AWS
    if options.proxy is not None:
        proxy = urlsplit(options.proxy)
        given = {
            "host": proxy.hostname,
            "port": proxy.port,
            "username": proxy.username,
            "password": proxy.password,
        }
        settings |= {f"proxy.{name}": str(value) for name, value in given.items() if value}
    return settings


def _s3a_credentials(options: S3Options) -> dict[str, str]:
    """Who s3a is for the store; what the session has configured, where nothing is said."""
    if options.anonymous:
        return {"aws.credentials.provider": _ANONYMOUS}
    settings: dict[str, str] = {}
    if options.access_key is not None and options.secret_key is not None:
        settings = {
            "access.key": options.access_key,
            "secret.key": options.secret_key,
            "aws.credentials.provider": _STATIC,
        }
        if options.session_token is not None:
            settings |= {
                "session.token": options.session_token,
                "aws.credentials.provider": _TEMPORARY,
            }
    if options.role_arn is not None:
        settings |= {
            "assumed.role.arn": options.role_arn,
            "assumed.role.credentials.provider": settings.get("aws.credentials.provider", _DEFAULT),
            "aws.credentials.provider": _ROLE,
        }
        if options.role_session is not None:
            settings["assumed.role.session.name"] = options.role_session
    return settings


def _milliseconds(seconds: float) -> str:
    """A wait as s3a takes it, which has a least one."""
    return f"{int(max(seconds, _LEAST_S3A_S) * 1000)}ms"


# -------------------------------------------------------------------------------------------------
# Uploads of large files that were begun and never completed


BOTO3_MISSING = "boto3 is not installed (pip install 'icefloe[s3]')"


@dataclass(frozen=True, slots=True)
class Upload:
    """Parts of an object that does not exist: its writer failed or was killed."""

    location: str
    key: str
    upload_id: str
    started: datetime


def list_uploads(filesystem: BoundedS3FileSystem, folder: str) -> list[Upload] | None:
    """The uploads below a location that are not complete; None without boto3."""
    if (client := filesystem.client) is None:
        return None
    store, _, prefix = folder.rstrip("/").partition("://")[2].partition("/")
    scheme = folder.partition("://")[0]
    pages = client.get_paginator("list_multipart_uploads")
    with reading_object(store, prefix):
        return [
            Upload(f"{scheme}://{store}/{u['Key']}", u["Key"], u["UploadId"], u["Initiated"])
            for page in pages.paginate(Bucket=store, Prefix=f"{prefix}/" if prefix else "")
            for u in page.get("Uploads", ())
        ]


def abort_upload(filesystem: BoundedS3FileSystem, upload: Upload) -> None:
    """Delete the parts of an upload."""
    client: Any = filesystem.client
    bucket = upload.location.partition("://")[2].partition("/")[0]
    with reading_object(bucket, upload.key):
        client.abort_multipart_upload(Bucket=bucket, Key=upload.key, UploadId=upload.upload_id)


_MOST_KEYS = 1000  # of one request


def delete_objects(filesystem: BoundedS3FileSystem, paths: Sequence[str]) -> dict[str, str]:
    """Delete objects, many with one request; those that still exist, with the reason."""
    client: Any = filesystem.client
    by_bucket: dict[str, list[str]] = {}
    for path in paths:
        bucket, _, key = path.partition("/")
        by_bucket.setdefault(bucket, []).append(key)
    failed: dict[str, str] = {}
    for bucket, keys in by_bucket.items():
        for start in range(0, len(keys), _MOST_KEYS):
            batch = keys[start : start + _MOST_KEYS]
            try:
                reply = client.delete_objects(
                    Bucket=bucket, Delete={"Objects": [{"Key": k} for k in batch], "Quiet": True}
                )
            except Exception as error:  # noqa: BLE001 - which of them were deleted is unknown
                failed |= {f"{bucket}/{key}": str(error) for key in batch}
                continue
            for refused in reply.get("Errors", ()):
                if refused.get("Code") != "NoSuchKey":
                    failed[f"{bucket}/{refused['Key']}"] = f"{refused.get('Message', refused)}"
    return failed


_EXPIRED = re.compile(r"ExpiredToken|TokenRefreshRequired|RequestExpired|token \w+ expired")


# As Hadoop, PyArrow and boto3 say that HEAD was answered with 400.
_BAD_HEAD = re.compile(
    r"^Bad Request$|\(HTTP status 400\) during Head|\(400\) when calling the Head"
)


def with_advice(reason: str) -> str:
    """A store's reason for a failure, and what to do about credentials that ended."""
    if _EXPIRED.search(reason) is not None:
        what = "The credentials ended before the work did."
    elif _BAD_HEAD.search(reason) is not None:
        what = (
            "Answers to HEAD have no text: this one means that the credentials ended before the "
            "work did, or that the region is wrong."
        )
    else:
        return reason
    return (
        f"{reason.rstrip('.')}. {what} Those that a catalog vends are renewed before each job: run "
        "the statement again, in smaller parts if one job takes longer than they last, or have the "
        "catalog vend them for longer"
    )
