"""One record as a request: where it goes, what is sent, and the key by which the upstream knows it again."""

from __future__ import annotations

import hashlib
import json
import re
import uuid
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from sync_assets.claims import ClaimedAccount
from sync_assets.upstream import AuthFailed, holds_secret
from sync_assets.upstream.address import checked_url

_KEYS = uuid.UUID("b2f0a2c8-6f0e-5d7e-9d55-0d8f2f3f6a11")
"""The namespace of our idempotency keys. Changing it would send what is in flight a second time."""

_BLANK_OUTSIDE_TEXT = re.compile(r'("[^"\\]*(?:\\.[^"\\]*)*")|\s+')


@dataclass(frozen=True)
class Change:
    """A record that is to be sent, as it was read.

    Attributes:
        record_id: its name within the account.
        version: what will be acknowledged.
        data: the document as Postgres writes it; None for a tombstone.
    """

    record_id: str
    version: int
    data: str | None


@dataclass(frozen=True)
class Target:
    """Where an account's records go.

    Attributes:
        base_url: without a slash at the end.
        secret_ref: the bearer's reference; None: sent without one.
    """

    base_url: str
    secret_ref: str | None

    @classmethod
    def of(cls, account: ClaimedAccount, upstream_url: str | None) -> Target:
        """Read the account's row.

        Raises:
            AuthFailed: the row cannot be used as it is; names the column.
        """
        try:
            row = account.row
        except (ValueError, RecursionError) as error:
            raise AuthFailed(f"the account's row cannot be read: {type(error).__name__}") from None
        settings = row.get("settings")
        if settings is not None and not isinstance(settings, dict):
            raise AuthFailed(f"settings is a JSON {_json_kind(settings)}; expected an object, such as {{}}")
        secret_ref = row.get("secret_ref")
        if secret_ref is not None and not isinstance(secret_ref, str):
            raise AuthFailed(f"secret_ref is a JSON {_json_kind(secret_ref)}; expected text, such as env:NAME")
        of_row = row.get("base_url")
        if not of_row and not upstream_url:
            raise AuthFailed("there is no address to send to: set base_url in the account's row, or SYNC_UPSTREAM_URL")
        name = "base_url" if of_row else "SYNC_UPSTREAM_URL"
        url = checked_url(of_row or upstream_url, name)
        if "?" in str(url) or "#" in str(url):  # also an empty one would swallow the path
            raise AuthFailed(f"{name} has a query or a fragment, and paths are added to it; expected https://HOST/PATH")
        return cls(str(url).rstrip("/"), secret_ref or None)

    def url(self, account_id: str, record_id: str) -> str:
        """The record's address."""
        return f"{self.base_url}/accounts/{_path_part(account_id)}/records/{_path_part(record_id)}"


def body_of(change: Change) -> bytes | None:
    """The body: JSON without blanks, keys in order, and the document as Postgres keeps it.

    jsonb has one way of writing a document, with every digit of its numbers; Python's floats would lose some, and a
    resend must not differ from what was sent before.
    """
    if change.data is None:
        return None
    data = _BLANK_OUTSIDE_TEXT.sub(lambda found: found.group(1) or "", change.data)
    record_id = json.dumps(change.record_id, ensure_ascii=False)
    return f'{{"data":{data},"id":{record_id},"version":{change.version}}}'.encode()


def idempotency_key(account_id: str, change: Change, body: bytes | None) -> str:
    """The same for every sending of this version with this body, whichever run makes it; else another."""
    parts = [account_id, change.record_id, change.version, hashlib.sha256(body or b"").hexdigest()]
    return str(uuid.uuid5(_KEYS, json.dumps(parts)))


def external_id_of(answer: bytes) -> str | None:
    """The upstream's own name for the record, if its answer tells one in a way we know."""
    try:
        document: Any = json.loads(answer)
    except (ValueError, RecursionError):
        return None
    if not isinstance(document, dict):
        return None
    for name in ("external_id", "id"):
        value = document.get(name)
        if isinstance(value, str | int) and not isinstance(value, bool):
            text = str(value)
            usable = text.isprintable() and 0 < len(text) <= 512 and not holds_secret(text)
            return text if usable else None
    return None


def _path_part(text: str) -> str:
    quoted = quote(text, safe="")
    # `quote` leaves dots, and a part that is only those means another place
    return quoted.replace(".", "%2E") if quoted in {".", ".."} else quoted


def _json_kind(value: object) -> str:
    kinds = {str: "text", bool: "boolean", int: "number", float: "number", list: "array", dict: "object"}
    return kinds.get(type(value), "null")
