"""The default sync: an account's changed records, page by page, sent and acknowledged."""

from __future__ import annotations

import asyncio

from sync_assets.account_sync import AccountSync, SyncResult
from sync_assets.claims import ClaimedAccount, Database
from sync_assets.clock import Deadline
from sync_assets.push.records import Outcome, Records
from sync_assets.push.request import Change, Target, body_of, external_id_of, idempotency_key
from sync_assets.upstream import Rejected, RetryLater, SyncError, UpstreamClient, one_line

_EDITED_WAIT = 0.1  # seconds between tries to write back a record that somebody is editing
_RESERVE = 2.0  # seconds, and at most a tenth of the time, in which nothing is sent any more but written back


class RecordPush(AccountSync):
    """Pushes the account's records that changed since the upstream accepted them last.

    `PUT {base_url}/accounts/{account_id}/records/{record_id}` for a record, `DELETE` for a tombstone. What the
    upstream accepted is acknowledged page by page, so an account with more to send than fits in its time gets on with
    every run. A record the upstream rejects is remembered and the account goes on; any other fault ends the account's
    sync, after what had been accepted is written back.

    Args:
        database: the accounts' database, with the records in it.
        upstream_url: for accounts whose row has no `base_url`.
        page_size: records read, and acknowledged, together.
    """

    def __init__(self, database: Database, *, upstream_url: str | None = None, page_size: int = 100) -> None:
        super().__init__(database)
        self._upstream_url = upstream_url
        self._page_size = page_size

    async def sync(self, account: ClaimedAccount, client: UpstreamClient, deadline: Deadline) -> SyncResult:
        """Push one account; see `AccountSync.sync`."""
        target = Target.of(account, self._upstream_url)
        push = _AccountPush(account, target, client, Records(self.database, account, deadline), deadline)
        return await push.run(self._page_size)


class _AccountPush:
    """One account's push: what was sent and is not written back yet, and the counts."""

    def __init__(
        self, account: ClaimedAccount, target: Target, client: UpstreamClient, records: Records, deadline: Deadline
    ) -> None:
        self._account = account
        self._target = target
        self._client = client
        self._records = records
        self._deadline = deadline
        self._send_by = Deadline(deadline.at - min(_RESERVE, deadline.remaining() / 10))
        self._unwritten: dict[str, Outcome] = {}
        self._accepted = 0
        self._rejected = 0

    async def run(self, page_size: int) -> SyncResult:
        """Everything that is due now, each record once.

        A cancellation writes nothing more: what is sent again because of it carries the same key.
        """
        fault: SyncError | None = None
        after = ""
        while fault is None:
            page = await self._records.changed(after, page_size)
            fault = await self._send_page(page)
            await self._write_back()
            if len(page) < page_size:
                break
            after = page[-1].record_id
        while self._unwritten:
            await self._wait_for_editors()
            await self._write_back()
        if fault is not None:
            fault.sent, fault.rejected = self._accepted, self._rejected
            raise fault
        return SyncResult(sent=self._accepted, rejected=self._rejected)

    async def _send_page(self, page: list[Change]) -> SyncError | None:
        """Send until the end of the page, or until a fault that another record would meet as well."""
        try:
            for change in page:
                self._unwritten[change.record_id] = await self._send(change)
        except SyncError as fault:
            return fault
        return None

    async def _send(self, change: Change) -> Outcome:
        body = body_of(change)
        headers = {
            "Idempotency-Key": idempotency_key(self._account.account_id, change, body),
            "Sync-Claim-Seq": str(self._account.claim_seq),
        }
        if body is not None:
            headers["Content-Type"] = "application/json"
        try:
            answer = await self._client.request(
                "DELETE" if body is None else "PUT",
                self._target.url(self._account.account_id, change.record_id),
                deadline=self._send_by,
                secret_ref=self._target.secret_ref,
                content=body,
                headers=headers,
                accept={404, 410} if body is None else (),  # gone already is what was asked for
            )
        except Rejected as fault:
            self._rejected += 1
            return Outcome(change.version, accepted=False, error=one_line(fault.detail))
        self._accepted += 1
        if answer.status == 404:
            # Gone already, or never there because the address is wrong: asked again when the configuration changes.
            return Outcome(change.version, accepted=False)
        told = external_id_of(answer.body) if body is not None else None
        return Outcome(change.version, accepted=True, external_id=told)

    async def _write_back(self) -> None:
        if self._unwritten:
            edited = await self._records.acknowledge(self._unwritten)
            self._unwritten = {name: outcome for name, outcome in self._unwritten.items() if name in edited}

    async def _wait_for_editors(self) -> None:
        if self._deadline.remaining() <= 2 * _EDITED_WAIT:
            name = min(self._unwritten)
            raise RetryLater(
                f"record {name!r} was sent, but is being edited in a transaction that did not end in time; "
                f"{len(self._unwritten)} such records will be sent again"
            )
        await asyncio.sleep(_EDITED_WAIT)
