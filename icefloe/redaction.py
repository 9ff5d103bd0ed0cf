"""Keep the secrets of catalogs out of messages and logs.

Secrets are registered when a catalog is opened or a table is loaded. Every message of icefloe
passes through `redacted`; a logging filter does the same for its log records.
"""

from __future__ import annotations

import logging
import re
import traceback
from collections.abc import Container, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import wraps
from threading import Lock
from typing import Any, TypeVar
from urllib.parse import parse_qsl, quote, quote_plus, unquote, unquote_plus, urlsplit

_T = TypeVar("_T")

MASK = "*********(redacted)"  # as Spark writes it

_SHORTEST = 4
DISTINCT = 8  # shorter secrets may be part of a common word, so only whole words are masked
_MAX_SECRETS = 500  # the oldest are dropped: servers issue tokens for each table
_NAMES = re.compile(
    r"passw|passphrase|pwd|secret|token|credential|authorization|signature|"
    r"(access|account|shared|api|private|customer|sse)[-_.]?key|"
    r"(^|[-_.])sas([-_.]|$)|connection[-_.]?string",
    re.IGNORECASE,
)
_PLAIN = re.compile(
    r"[-_.](enabled|type|uri|url|endpoint|path|file|location|name|expires-at(-ms)?|provider|class)$",
    re.IGNORECASE,
)
_PLAIN_VALUES = {"true", "false", "none", "null"}
# The user part ends at a colon; SQLAlchemy ends the password at the first @, others at the last.
_USERINFO = re.compile(r"^[\w+.-]+://([^:/?#@]*)(?::([^@]*)((?:@[^/?#]*)*))?@")
_IN_TEXT = re.compile(r"([A-Za-z][\w+.-]*://[^\s:/@'\"]*):[^\s/@'\"]+@")

# Characters that `repr` and JSON escape with a backslash, nested ones with several.
_ESCAPED = {"'": r"\\*'", '"': r'\\*"', "\\": r"\\+", "\n": r"(?:\n|\\+n)", "\t": r"(?:\t|\\+t)"}


class _Registry:
    """The secrets of this process, and the patterns that find them."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._by_secret: dict[str, re.Pattern[str]] = {}  # in the order of registration
        self.patterns: tuple[re.Pattern[str], ...] = ()  # longest secret first

    def add(self, secrets: set[str]) -> None:
        """Register more secrets; beyond the maximum, the oldest are dropped."""
        with self._lock:
            if not (new := secrets - self._by_secret.keys()):
                return
            self._by_secret.update(
                {secret: re.compile(_masked_form(secret)) for secret in sorted(new)}
            )
            for oldest in list(self._by_secret)[: max(0, len(self._by_secret) - _MAX_SECRETS)]:
                del self._by_secret[oldest]
            longest_first = sorted(self._by_secret, key=len, reverse=True)
            self.patterns = tuple(self._by_secret[secret] for secret in longest_first)


_registry = _Registry()


def names_secret(key: str) -> bool:
    """Whether the value of a property of this name is a secret."""
    return bool(_NAMES.search(key)) and not _PLAIN.search(key)


def register(
    properties: Mapping[str, object], *, shortest: int = 0, names: Container[str] = ()
) -> None:
    """Register the secrets among these properties, to mask them in every message from now on.

    Values shorter than `shortest` and values among `names` are not secrets: a property of a table
    may name the column that has a token.
    """
    forms = (
        form
        for key, value in properties.items()
        for secret in _secrets_in(str(key), value)
        if len(secret) >= shortest and secret not in names
        for form in _forms(secret)
    )
    _registry.add(set(forms))


def redacted(text: str) -> str:
    """A text with registered secrets and the passwords of URIs masked."""
    for pattern in _registry.patterns:
        text = pattern.sub(MASK, text)
    return _IN_TEXT.sub(rf"\1:{MASK}@", text)


def shown_properties(properties: Mapping[str, str]) -> dict[str, str]:
    """Properties for people to read, secret values masked; sorted by name."""
    return {
        key: MASK if names_secret(key) else redacted(value)
        for key, value in sorted(properties.items())
    }


def redacted_texts(value: Any) -> Any:
    """A text or a tuple of texts without secrets; any other value unchanged."""
    if type(value) is tuple:
        return tuple(redacted_texts(one) for one in value)
    return redacted(value) if type(value) is str else value


def masked_repr(kind: type[_T]) -> type[_T]:
    """Mask secrets in the repr of a class; applied after `@dataclass`, which generates the repr."""
    plain = kind.__repr__

    @wraps(plain)
    def masked(self: _T) -> str:
        return redacted(plain(self))

    kind.__repr__ = masked  # type: ignore[assignment, method-assign]
    return kind


def reveals(error: BaseException) -> bool:
    """Whether the traceback of an error shows a secret."""
    text = "".join(traceback.format_exception(error))
    return redacted(text) != text


def scrub(error: BaseException) -> None:
    """Mask secrets in an exception of another library, and in its causes."""
    pending, seen = [error], set[int]()
    while pending:
        one = pending.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        _scrub_one(one)
        linked = (one.__cause__, one.__context__, getattr(one, "orig", None), *one.args)
        pending += [other for other in linked if isinstance(other, BaseException)]


@contextmanager
def scrubbed() -> Iterator[None]:
    """Run calls of a catalog; secrets in their errors are masked."""
    try:
        yield
    except BaseException as error:
        scrub(error)
        raise


def _scrub_one(error: BaseException) -> None:
    if (clean := redacted_texts(error.args)) != error.args:
        error.args = clean
    for name in ("strerror", "filename", "statement"):
        with suppress(Exception):  # it may be a property; the error itself must be raised
            value = getattr(error, name, None)
            if (clean := redacted_texts(value)) != value:
                setattr(error, name, clean)
    if notes := getattr(error, "__notes__", None):
        notes[:] = map(redacted_texts, notes)


def _secrets_in(key: str, value: object) -> Iterator[str]:
    """The secrets of one property, which may be a URI or contain several values."""
    if isinstance(value, Mapping):
        for inner, nested in value.items():
            yield from _secrets_in(f"{key}.{inner}", nested)
        return
    text = str(value)
    yield from _secrets_of_uri(text)
    if names_secret(key):
        yield text
        yield from re.split(r"[\s:]", text, maxsplit=1)[1:]  # of `id:secret` and `Bearer token`
    for part in text.split(";"):  # of a connection string
        name, separator, secret = part.partition("=")
        if separator and re.fullmatch(r"[\w -]+", name) and names_secret(name.replace(" ", "")):
            yield secret


def _secrets_of_uri(text: str) -> Iterator[str]:
    if "://" not in text:
        return
    if userinfo := _USERINFO.match(text):
        user, password, more = userinfo.groups()
        if password is not None:
            yield password
            yield f"{password}{more}"
        elif text.startswith("http"):
            yield user  # a token
    with suppress(ValueError):  # brackets that are no address
        for name, value in parse_qsl(urlsplit(text).query):
            if names_secret(name):
                yield value


def _forms(secret: str) -> Iterator[str]:
    """The spellings of a secret in messages: with and without URI quoting."""
    for plain in {secret, unquote(secret), unquote_plus(secret)}:
        for form in (plain, quote(plain, safe=""), quote(plain), quote_plus(plain)):
            if len(form) >= _SHORTEST and form.lower() not in _PLAIN_VALUES:
                yield form


def _masked_form(secret: str) -> str:
    exact = "".join(_ESCAPED.get(mark, re.escape(mark)) for mark in secret)
    return exact if len(secret) >= DISTINCT else rf"(?<!\w){exact}(?!\w)"


class _SecretsFilter(logging.Filter):
    """Masks secrets in the messages and tracebacks of log records."""

    def filter(self, record: logging.LogRecord) -> bool:
        message = record.getMessage()
        if (clean := redacted(message)) != message:
            record.msg, record.args = clean, ()
        if record.exc_info and record.exc_info[1] is not None:
            lines = traceback.format_exception(record.exc_info[1])
            record.exc_text = redacted("".join(lines).rstrip("\n"))
        return True


logging.getLogger("icefloe").addFilter(_SecretsFilter())
