"""What must not be seen is taken out of every text on its way to a log, the row or the screen."""

from __future__ import annotations

import json
import re
from urllib.parse import quote

_BEARER = re.compile(r"(?i)\b(bearer)\s+[^\s\"',;]+")
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]*://[^\s\"'<>]*")

# Every secret this process has resolved, in the forms in which libraries repeat it. A dict, because one is only ever
# added (in one atomic step: runs live in several threads) and the order does not matter.
_secrets: dict[str, None] = {}


def register_secret(secret: str) -> None:
    """From now on `redact` takes this value out of every text."""
    for form in (secret, quote(secret, safe=""), json.dumps(secret)[1:-1], repr(secret)[1:-1]):
        _secrets[form] = None


def holds_secret(text: str) -> bool:
    """Whether a secret that this process has resolved is in the text."""
    return any(secret in text for secret in list(_secrets))


def redact(text: str) -> str:
    """The text without secrets.

    Every secret this process has resolved becomes `***`, `Bearer xyz` becomes `Bearer ***`, and URLs lose their
    userinfo, query and fragment.
    """
    for secret in sorted(_secrets, key=len, reverse=True):  # the longest first: one may contain another
        text = text.replace(secret, "***")
    text = _BEARER.sub(r"\1 ***", text)
    return _URL.sub(lambda found: shown_url(found.group()), text)


def one_line(text: str, limit: int = 500) -> str:
    """The text redacted, on one line, at most `limit` characters; nothing in it that Postgres text cannot hold.

    Control characters (NUL among them) and lone surrogates become spaces.
    """
    printable = "".join(character if character.isprintable() else " " for character in redact(text))
    line = " ".join(printable.split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


def shown_url(text: str) -> str:
    """An address, well formed or not, as it may be shown: without userinfo, query and fragment."""
    cut = re.search(r"[?#]", text)
    head, rest = (text[: cut.start()], text[cut.start() :]) if cut else (text, "")
    scheme, separator, place = head.rpartition("://") if "://" in head else ("", "", head)
    authority, slash, path = place.partition("/")
    if "@" in place:
        # a password may hold a slash: everything up to the last @ goes
        return scheme + separator + place.rpartition("@")[2]
    if "@" in rest and not re.fullmatch(r"[^:]*(:[0-9]*)?|\[.*\](:[0-9]*)?", authority):
        authority = "***"  # a password may hold a question mark, too: then this is half of it
    return scheme + separator + authority + slash + path
