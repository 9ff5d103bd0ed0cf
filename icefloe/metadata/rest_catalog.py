"""REST catalogs: requests that end, and errors that prove that a commit was not applied.

PyIceberg's client waits without a limit, and repeats nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import (
    AuthorizationExpiredError,
    BadRequestError,
    ForbiddenError,
    ServiceUnavailableError,
    TooManyRequestsError,
    UnauthorizedError,
)
from urllib3.exceptions import ConnectTimeoutError, MaxRetryError, NewConnectionError
from urllib3.util import Retry

from icefloe.storage.s3 import MAX_ATTEMPTS, positive

if TYPE_CHECKING:
    from requests import Session

REST_CONNECT_TIMEOUT = "icefloe.rest.connect-timeout"
REST_REQUEST_TIMEOUT = "icefloe.rest.request-timeout"
_CONNECT_S, _REQUEST_S, _ATTEMPTS = 5.0, 30.0, 4
_BACKOFF_S = 0.5  # doubles with each attempt
_REPEATED = (429, 502, 503, 504)  # answers to a request that only reads
_REFUSALS = (BadRequestError, UnauthorizedError, ForbiddenError, AuthorizationExpiredError)


def is_rest(properties: Mapping[str, Any]) -> bool:
    """Whether properties are those of a REST catalog that PyIceberg's own class can be."""
    uri = str(properties.get("uri", ""))
    kind = properties.get("type") or ("rest" if uri.startswith("http") else "")
    return bool(uri) and str(kind).lower() == "rest" and "py-catalog-impl" not in properties


def open_rest_catalog(name: str, **properties: Any) -> Catalog:
    """PyIceberg's catalog; its requests time out, and those that only read are repeated."""
    from pyiceberg.catalog import rest  # noqa: PLC0415 - slow to import

    class RestCatalog(rest.RestCatalog):
        def _create_session(self) -> Session:
            session = super()._create_session()
            _bound(session, self.properties)
            return session

    return RestCatalog(name, **properties)


def _bound(session: Session, properties: Mapping[str, Any]) -> None:
    """Limit the waits of a session, and have it repeat what may be repeated."""
    connect = positive(properties, REST_CONNECT_TIMEOUT, float) or _CONNECT_S
    answer = positive(properties, REST_REQUEST_TIMEOUT, float) or _REQUEST_S
    attempts = positive(properties, MAX_ATTEMPTS, int) or _ATTEMPTS
    request: Any = partial(session.request, timeout=(connect, answer))
    session.request = request  # type: ignore[method-assign]
    for adapter in session.adapters.values():
        adapter.max_retries = Retry(  # type: ignore[attr-defined]
            total=attempts - 1,
            read=min(1, attempts - 1),  # a request that was sent takes long to fail
            status_forcelist=_REPEATED,
            allowed_methods=("GET", "HEAD"),  # a connection is attempted again for all
            other=0,  # TLS may end after a request was sent; these are repeated whatever the method
            backoff_factor=_BACKOFF_S,
            respect_retry_after_header=False,
            raise_on_status=False,
        )


def is_refused_for_now(error: BaseException) -> bool:
    """Whether a catalog provably did not take a request, and may take it later."""
    if isinstance(error, TooManyRequestsError):
        return True
    # What the client of HTTP raises is an OSError, and has that of its connection inside.
    cause = error.args[0] if isinstance(error, OSError) and error.args else None
    reason = cause.reason if isinstance(cause, MaxRetryError) else cause
    return isinstance(reason, NewConnectionError | ConnectTimeoutError)


def is_unavailable(error: BaseException) -> bool:
    """Whether a catalog, or a proxy before it, answered 503.

    Proxies do so as well when the connection to the catalog breaks after they have passed a request
    on, so the request may still be applied.
    """
    return isinstance(error, ServiceUnavailableError)


def is_refused(error: BaseException) -> bool:
    """Whether a catalog refused a request, which it would refuse again."""
    return isinstance(error, _REFUSALS)
