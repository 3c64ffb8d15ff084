"""Whether an address can be sent to at all."""

from __future__ import annotations

import re

import httpx

from sync_assets.upstream.errors import AuthFailed
from sync_assets.upstream.redaction import shown_url

_HOST = re.compile(r"(?=.{1,253}$)[A-Za-z0-9_]([A-Za-z0-9_-]{0,62})(\.[A-Za-z0-9_][A-Za-z0-9_-]{0,62})*\.?")


def checked_url(text: object, name: str = "the address") -> httpx.URL:
    """The address parsed, with its host in ASCII and its path quoted.

    Args:
        text: an absolute http or https URL.
        name: what to call it in the message.

    Raises:
        AuthFailed: it cannot be used. The message shows it without userinfo and query.
    """
    expected = "expected https://HOST/PATH"
    if not isinstance(text, str):
        raise AuthFailed(f"{name} is {type(text).__name__}; {expected}")
    shown = f"{name} {shown_url(text)!r} cannot be used"
    if re.search(r"[\x00-\x20\x7f]", text):
        raise AuthFailed(f"{shown}: it has a blank or control character in it; {expected}")
    try:
        url = httpx.URL(text)
        host = url.raw_host.decode("ascii")
    except (httpx.InvalidURL, ValueError):
        raise AuthFailed(f"{shown}: it is malformed; {expected}") from None
    if url.scheme not in {"http", "https"}:
        raise AuthFailed(f"{shown}: its scheme is not http or https; {expected}")
    if (
        not host
        or (url.port is not None and not 0 < url.port < 65536)
        or (":" not in host and not _HOST.fullmatch(host))
    ):
        raise AuthFailed(f"{shown}: it has no host that could be connected to; {expected}")
    if url.userinfo:
        raise AuthFailed(f"{shown}: it carries a user name or password; put the credential behind secret_ref")
    return url
