"""HTTP: the client, and what an answer means."""

from sync_assets.upstream.client import UpstreamClient, UpstreamResponse
from sync_assets.upstream.errors import AuthFailed, RateLimited, Rejected, RetryLater, SyncError

__all__ = [
    "AuthFailed",
    "RateLimited",
    "Rejected",
    "RetryLater",
    "SyncError",
    "UpstreamClient",
    "UpstreamResponse",
]
