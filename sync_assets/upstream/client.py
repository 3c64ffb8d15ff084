"""The HTTP client (contract; being built)."""
from __future__ import annotations


class UpstreamResponse: ...


class UpstreamClient: ...
