"""The owner of the data, in a process of its own: edits, deletes and makes again, at once or in open transactions."""

from __future__ import annotations

import json
import logging
import random
import signal
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psycopg

from sync_assets_tests.soak.children import end_with_parent
from sync_assets_tests.soak.events import EventLog

RECORDS = 6
_Connection = psycopg.Connection[Any]

_ADD_ACCOUNT = "INSERT INTO sync.account_config (account_id, secret_ref) VALUES (%s, %s) ON CONFLICT DO NOTHING"
_PUT_RECORD = (
    "INSERT INTO sync.account_record (account_id, record_id, data) VALUES (%s, %s, %s) "
    "ON CONFLICT (account_id, record_id) DO UPDATE SET data = excluded.data, deleted_at = NULL"
)
_BURY_RECORD = "UPDATE sync.account_record SET deleted_at = now() WHERE account_id = %s AND record_id = %s"
_DROP_RECORD = "DELETE FROM sync.account_record WHERE account_id = %s AND record_id = %s"
_SETTINGS = "UPDATE sync.account_config SET settings = %s WHERE account_id = %s"
_DISABLE = "UPDATE sync.account_config SET enabled = false WHERE account_id = %s"
_ENABLE = "UPDATE sync.account_config SET enabled = true WHERE NOT enabled AND account_id = ANY(%s)"
_DROP_ACCOUNT = "DELETE FROM sync.account_config WHERE account_id = %s"


def secret_name(account: str) -> str:
    """The variable that holds an account's secret."""
    return f"SYNC_SECRET_{account.upper().replace('-', '_')}"


def add_account(connection: _Connection, account: str) -> None:
    connection.execute(_ADD_ACCOUNT, [account, f"env:{secret_name(account)}"])


class Editor:
    """What an owner does to some accounts, drawn from a seed."""

    def __init__(self, accounts: Sequence[str], seed: int) -> None:
        self._accounts = accounts
        self._random = random.Random(seed)
        self._count = 0

    def edit(self, connection: _Connection) -> str:
        """One edit; its name."""
        edits: dict[Callable[[_Connection, str], None], int] = {
            self.put: 66,
            self._bury: 10,
            self._make_record_again: 7,
            self._settings: 8,
            self._disable: 2,
            self._enable: 6,
            self._make_account_again: 1,
        }
        edit = self._random.choices(list(edits), list(edits.values()))[0]
        edit(connection, self._random.choice(self._accounts))
        return edit.__name__.strip("_")

    def put(self, connection: _Connection, account: str) -> None:
        self._count += 1
        data = {"n": self._count, "refuse": True} if self._random.random() < 0.03 else {"n": self._count}
        connection.execute(_PUT_RECORD, [account, self._record(), json.dumps(data)])

    def hold(self, connection: _Connection, pause: Callable[[float], object]) -> str:
        """Edit a record and then the configuration in one transaction, slowly; one in three is rolled back."""
        account = self._random.choice(self._accounts)
        with connection.transaction(force_rollback=self._random.random() < 0.33):
            self.put(connection, account)
            pause(self._random.uniform(0.2, 1.5))
            self._settings(connection, account)
            pause(self._random.uniform(0.0, 0.7))
        return "transaction"

    def _record(self) -> str:
        return f"r{self._random.randrange(RECORDS)}"

    def _bury(self, connection: _Connection, account: str) -> None:
        connection.execute(_BURY_RECORD, [account, self._record()])

    def _make_record_again(self, connection: _Connection, account: str) -> None:
        record = self._record()
        with connection.transaction():
            connection.execute(_DROP_RECORD, [account, record])
            connection.execute(_PUT_RECORD, [account, record, json.dumps({"again": self._random.random()})])

    def _settings(self, connection: _Connection, account: str) -> None:
        connection.execute(_SETTINGS, [json.dumps({"n": self._random.random()}), account])

    def _disable(self, connection: _Connection, account: str) -> None:
        connection.execute(_DISABLE, [account])

    def _enable(self, connection: _Connection, _: str) -> None:
        connection.execute(_ENABLE, [list(self._accounts)])

    def _make_account_again(self, connection: _Connection, account: str) -> None:
        connection.execute(_DROP_ACCOUNT, [account])
        add_account(connection, account)


def edit_until_told(url: str, folder: Path, accounts: Sequence[str], seed: int) -> None:
    """The whole life of the process; SIGTERM ends it."""
    end_with_parent()
    over = threading.Event()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    logging.basicConfig(filename=folder / "editor.log")  # what psycopg says when a server is killed under it
    log = EventLog(folder / "editor.jsonl")

    def keep_on(step: Callable[[_Connection], str]) -> None:
        while not over.is_set():
            try:
                with psycopg.connect(url, autocommit=True, options="-c lock_timeout=5s") as connection:
                    while not over.is_set():
                        log.write(what=step(connection), phase="ok")
            except psycopg.Error as error:  # the server was restarted, or two of our own transactions met
                log.write(what="edit", phase="fail" if error.sqlstate else "info", error=type(error).__name__)
                over.wait(0.2)

    slow, quick = Editor(accounts, seed + 1), Editor(accounts, seed)
    patience = random.Random(seed + 2)

    def quick_step(connection: _Connection) -> str:
        over.wait(patience.uniform(0.01, 0.06))
        return quick.edit(connection)

    threads = [
        threading.Thread(target=keep_on, args=(quick_step,)),
        threading.Thread(target=keep_on, args=(lambda connection: slow.hold(connection, over.wait),)),
    ]
    for thread in threads:
        thread.start()
    signal.sigwait({signal.SIGTERM})
    over.set()
    for thread in threads:
        thread.join()
