"""Accounts as partition keys: every id that Postgres can hold has one of its own, and comes back as it was."""

from __future__ import annotations

from dagster import DagsterInstance
from hypothesis import given, settings
from hypothesis import strategies as st

from sync_assets.defs.partitions import ACCOUNTS, Partitions, account_of, key_of

# weighted towards what has a meaning in a key or in its escape
IDS = st.text(st.one_of(st.sampled_from(".%0aA2Ee\n\t\x7f"), st.characters(exclude_categories=["Cs"])), min_size=1)


def test_a_key_is_the_account_s_alone_and_dagster_takes_it() -> None:
    with DagsterInstance.ephemeral() as instance:

        @settings(max_examples=50, deadline=None, derandomize=True, database=None)
        @given(IDS, IDS)
        def holds(one: str, other: str) -> None:
            key = key_of(one)
            assert key is not None
            assert account_of(key) == one
            assert (key == key_of(other)) is (one == other)
            instance.add_dynamic_partitions("accounts", [key])  # refuses what cannot be a key

        holds()


def test_an_id_stays_readable() -> None:
    assert key_of("acme") == "acme"
    assert key_of('["eu", 42]') == '["eu", 42]'
    assert key_of("a/b%20c…日本 50% 😀") == "a/b%2520c…日本 50% 😀"
    assert key_of("two\nlines...") == "two%0Alines..%2E"
    assert key_of("x" * 513) is None


def test_kept_in_step_with_the_table() -> None:
    with DagsterInstance.ephemeral() as instance:
        told = Partitions(instance).keep_in_step(["a", "b", "c", "y" * 600])
        assert told == ("partitions of accounts: 3 added, 1 accounts without one, their ids being over 512 characters")
        partitions = Partitions(instance)
        instance.add_dynamic_partitions("accounts", ["d"])  # by a run that is under way, after we looked
        assert partitions.keep_in_step(["b", "c", "new"]) == "partitions of accounts: 1 added, 1 removed"
        assert set(instance.get_dynamic_partitions("accounts")) == {"b", "c", "d", "new"}
        assert not Partitions(instance).keep_in_step(["b", "c", "d", "new"])
    assert ACCOUNTS.name == "accounts"


def test_tens_of_thousands_are_added() -> None:
    with DagsterInstance.ephemeral() as instance:
        Partitions(instance).keep_in_step([f"account-{n}" for n in range(35_000)])
        assert len(instance.get_dynamic_partitions("accounts")) == 35_000
