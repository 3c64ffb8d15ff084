"""The very statement and parameters a claim sends, to be run elsewhere: explained, or in a session of one's own."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from psycopg import sql

from sync_assets.claims import Selection
from sync_assets_tests.claims_rig import claims_at

Statement = tuple[sql.SQL | sql.Composed, dict[str, Any]]


def claim_statement(url: str, selection: Selection, limit: int, *, lease: float = 60.0) -> Statement:
    """What `Claims.claim` would send; nothing is claimed."""

    async def catch() -> Statement:
        sent: list[Statement] = []

        async def fetch(
            query: sql.SQL | sql.Composed, parameters: Mapping[str, object] | None = None
        ) -> list[tuple[Any, ...]]:
            sent.append((query, dict(parameters or {})))
            return []

        async with claims_at(url, lease=lease, selection=selection) as claims:
            claims._database.fetch = fetch  # type: ignore[method-assign]
            assert await claims.claim(selection, limit) == []
        return sent[0]

    return asyncio.run(catch())
