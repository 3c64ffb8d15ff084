"""HTTP: the client, and what an answer means."""

from sync_assets.upstream.client import MAX_RESPONSE_BYTES, UpstreamClient, UpstreamResponse
from sync_assets.upstream.errors import AuthFailed, OriginDown, RateLimited, Rejected, RetryLater, SyncError
from sync_assets.upstream.redaction import holds_secret, one_line, redact
from sync_assets.upstream.secrets import SecretResolver

__all__ = [
    "MAX_RESPONSE_BYTES",
    "AuthFailed",
    "OriginDown",
    "RateLimited",
    "Rejected",
    "RetryLater",
    "SecretResolver",
    "SyncError",
    "UpstreamClient",
    "UpstreamResponse",
    "holds_secret",
    "one_line",
    "redact",
]
