"""Requests that were signed with temporary credentials, signed again with the keys of the server.

Servers like ours refuse tokens that they have not issued.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Mapping
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from support.http_proxy import Request
from support.s3_server import REGION, S3Server

_TOKEN = "x-amz-security-token"


def signed_by(server: S3Server, request: Request, headers: Mapping[str, str]) -> dict[str, str]:
    """The headers without a token; the signature is for the same date and the same hash of the body."""
    by_name = {name.lower(): value for name, value in headers.items()}
    if _TOKEN not in by_name:
        return dict(headers)
    signature = re.search(r"SignedHeaders=([^,]+)", by_name["authorization"])
    assert signature is not None
    names = [name for name in signature[1].split(";") if name in by_name and name != _TOKEN]
    date, scope = by_name["x-amz-date"], f"{by_name['x-amz-date'][:8]}/{REGION}/s3/aws4_request"
    canonical = "\n".join(
        [
            request.method,
            quote(unquote(urlsplit(request.url).path), safe="/-_.~"),
            _query(urlsplit(request.url).query),
            *(f"{name}:{' '.join(by_name[name].split())}" for name in names),
            "",
            ";".join(names),
            by_name["x-amz-content-sha256"],
        ]
    )
    text = f"AWS4-HMAC-SHA256\n{date}\n{scope}\n{hashlib.sha256(canonical.encode()).hexdigest()}"
    key = f"AWS4{server.secret_key}".encode()
    for part in scope.split("/"):
        key = hmac.digest(key, part.encode(), "sha256")
    made = hmac.digest(key, text.encode(), "sha256").hex()
    authorization = (
        f"AWS4-HMAC-SHA256 Credential={server.access_key}/{scope}, "
        f"SignedHeaders={';'.join(names)}, Signature={made}"
    )
    kept = {n: v for n, v in headers.items() if n.lower() not in (_TOKEN, "authorization")}
    return {**kept, "Authorization": authorization}


def _query(text: str) -> str:
    pairs = parse_qsl(text, keep_blank_values=True)
    encoded = sorted((quote(name, safe="-_.~"), quote(value, safe="-_.~")) for name, value in pairs)
    return "&".join(f"{name}={value}" for name, value in encoded)
