"""HTTP: the client, and what an answer means."""

from sync_assets.upstream.client import UpstreamClient, UpstreamResponse
from sync_assets.upstream.errors import AuthFailed, RateLimited, Rejected, RetryLater, SyncError
from sync_assets.upstream.redaction import one_line, redact
from sync_assets.upstream.secrets import SecretResolver

__all__ = [
    "AuthFailed",
    "RateLimited",
    "Rejected",
    "RetryLater",
    "SecretResolver",
    "SyncError",
    "UpstreamClient",
    "UpstreamResponse",
    "one_line",
    "redact",
]
