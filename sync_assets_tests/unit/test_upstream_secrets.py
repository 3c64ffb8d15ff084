"""P11: secrets come by reference, only from where they may, and are seen in no text."""

from __future__ import annotations

import asyncio
import os
import secrets
import threading
from pathlib import Path
from urllib.parse import quote

import pytest

from sync_assets.upstream import AuthFailed, RetryLater, SecretResolver, one_line, redact
from sync_assets.upstream.address import checked_url
from sync_assets.upstream.redaction import shown_url


def fresh_secret() -> str:
    return "s3cr3t-" + secrets.token_hex(8)


def refused(resolver: SecretResolver, ref: str) -> str:
    with pytest.raises(AuthFailed) as caught:
        resolver.resolve(ref)
    return caught.value.detail


def test_env_with_the_prefix_only(monkeypatch: pytest.MonkeyPatch) -> None:
    secret = fresh_secret()
    monkeypatch.setenv("SYNC_SECRET_A", secret)
    monkeypatch.setenv("OTHER_A", secret)
    assert SecretResolver().resolve("env:SYNC_SECRET_A") == secret
    detail = refused(SecretResolver(), "env:OTHER_A")
    assert "env:OTHER_A" in detail
    assert "SYNC_SECRET_" in detail
    assert "env_prefix" in detail
    assert secret not in detail
    assert SecretResolver(env_prefix="OTHER_").resolve("env:OTHER_A") == secret


def test_a_missing_variable_is_named() -> None:
    assert "no environment variable SYNC_SECRET_NOWHERE" in refused(SecretResolver(), "env:SYNC_SECRET_NOWHERE")


@pytest.mark.parametrize("value", ["", "one\ntwo", "one\r\nX-Admin: yes", " leading", "trailing ", "näh", "tab\tin"])
def test_a_secret_that_cannot_be_sent_is_refused_and_not_shown(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SYNC_SECRET_ODD", value)
    detail = refused(SecretResolver(), "env:SYNC_SECRET_ODD")
    assert "env:SYNC_SECRET_ODD" in detail
    assert not value or value not in detail


def test_file_under_the_folder_only(tmp_path: Path) -> None:
    folder = tmp_path / "secrets"
    folder.mkdir()
    secret = fresh_secret()
    (tmp_path / "outside").write_text(secret)
    (folder / "token").write_text(secret + "\r\n")
    (folder / "inside").symlink_to(folder / "token")
    (folder / "leak").symlink_to(tmp_path / "outside")
    (folder / "circle").symlink_to(folder / "circle")
    (folder / "binary").write_bytes(b"\xff\xfe")
    (folder / "large").write_text("x" * 70_000)
    os.mkfifo(folder / "fifo")
    resolver = SecretResolver(directory=folder)
    for ref in ("file:token", f"file:{folder}/token", "file:inside", "file:../secrets/token"):
        assert resolver.resolve(ref) == secret
    for ref in ("file:../outside", f"file:{tmp_path}/outside", "file:leak"):
        assert "leads out of the folder" in refused(resolver, ref)
    for name in ("circle", "binary", "large", "fifo", "missing", "", "with\0nul"):
        detail = refused(resolver, f"file:{name}")
        assert f"file:{name}" in detail
    assert "no folder for secrets is set" in refused(SecretResolver(), "file:token")


def test_a_reference_that_may_be_the_secret_itself_is_not_shown() -> None:
    secret = fresh_secret()
    detail = refused(SecretResolver(), secret)
    assert secret not in detail
    assert "env:NAME" in detail


def test_a_users_resolver_takes_the_other_references() -> None:
    secret = fresh_secret()
    threads: list[str] = []

    def vault(ref: str) -> str:
        threads.append(threading.current_thread().name)
        if ref == "vault:down":
            raise RetryLater("the vault is down")
        if ref == "vault:bug":
            raise KeyError(secret)
        return {"vault:a": secret, "vault:empty": "", "vault:number": 5}[ref]  # type: ignore[return-value]

    resolver = SecretResolver(custom=vault)
    assert asyncio.run(resolver.fetch("vault:a")) == secret
    assert threads != [threading.current_thread().name], "it must not block the loop"
    with pytest.raises(RetryLater):
        resolver.resolve("vault:down")
    assert secret not in refused(resolver, "vault:bug")
    assert "KeyError" in refused(resolver, "vault:bug")
    assert "empty" in refused(resolver, "vault:empty")
    assert "int" in refused(resolver, "vault:number")
    assert "env_prefix" in refused(resolver, "env:PATH"), "ours stay ours"


def test_resolved_secrets_are_redacted_in_every_form(monkeypatch: pytest.MonkeyPatch) -> None:
    secret = fresh_secret() + '/+"\\'
    longer = secret + "-and-more"
    for name, value in (("A", secret), ("B", longer)):
        monkeypatch.setenv(f"SYNC_SECRET_{name}", value)
        SecretResolver().resolve(f"env:SYNC_SECRET_{name}")
    text = redact(f"{secret} {secret!r} {longer} https://h/{quote(secret, safe='')}")
    assert "s3cr3t" not in text
    assert "and-more" not in text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Authorization: Bearer abc.def-1", "Authorization: Bearer ***"),
        ("{'authorization': 'bearer abc'}", "{'authorization': 'bearer ***'}"),
        ("GET https://u:p@h:1/x/y?token=1#f failed", "GET https://h:1/x/y failed"),
        ("at postgresql://me:pw@db/name, sorry", "at postgresql://db/name, sorry"),
        ("no secrets: a@b.c ?x", "no secrets: a@b.c ?x"),
    ],
)
def test_redaction_of_urls_and_bearers(text: str, shown: str) -> None:
    assert redact(text) == shown


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://h/p?q=1", "https://h/p"),
        ("https://u:p@h/p", "https://h/p"),
        ("https://u:p/w@h/p", "https://h/p"),
        ("https://u:p?w@h/p", "https://***"),
        ("https://u:p#w@h/p", "https://***"),
        ("https://h:80/p?mail=a@b", "https://h:80/p"),
        ("https://[::1]:80/p?mail=a@b", "https://[::1]:80/p"),
        ("u:p@h/p", "h/p"),
        ("h", "h"),
    ],
)
def test_an_address_is_shown_without_userinfo_and_query(url: str, shown: str) -> None:
    assert shown_url(url) == shown


def test_one_line_is_safe_for_postgres_text() -> None:
    assert one_line("a\0b\r\nc\ud800d\x1b[31m \t é😀") == "a b c d [31m é😀"
    assert one_line("x" * 1000) == "x" * 499 + "…"
    assert one_line("x" * 10, limit=10) == "x" * 10
    one_line("\udfff\0").encode()


@pytest.mark.parametrize(
    ("url", "why"),
    [
        (None, "NoneType"),
        ({"a": 1}, "dict"),
        ("", "scheme"),
        ("api.example/v1", "scheme"),
        ("ftp://h/x", "scheme"),
        ("file:///etc/passwd", "scheme"),
        ("https://", "no host"),
        ("https:///path", "no host"),
        ("https://a..b/", "no host"),
        ("https://" + "x" * 64 + ".example/", "no host"),
        ("https://h:0/", "no host"),
        ("https://h:99999/", "no host"),
        ("https://h:port/", "malformed"),
        ("https://[::1/", "malformed"),
        ("https://h/a b", "blank"),
        ("https://h/\r\nX: y", "blank"),
        ("https://me:pa55@h/x?y=pa55", "user name or password"),
    ],
)
def test_p12_a_malformed_address_is_named_and_explained(url: object, why: str) -> None:
    with pytest.raises(AuthFailed) as caught:
        checked_url(url, "base_url")
    assert why in caught.value.detail
    assert "base_url" in caught.value.detail
    assert "pa55" not in caught.value.detail


@pytest.mark.parametrize(
    ("url", "sent"),
    [
        ("https://h/a/%2E%2E/b%2Fc", "https://h/a/%2E%2E/b%2Fc"),
        ("http://127.0.0.1:8080", "http://127.0.0.1:8080"),
        ("http://[::1]:8080/x", "http://[::1]:8080/x"),
        ("https://bücher.example/x", "https://xn--bcher-kva.example/x"),
        ("https://my_host.internal./x?y=1", "https://my_host.internal./x?y=1"),
    ],
)
def test_good_addresses(url: str, sent: str) -> None:
    assert str(checked_url(url)) == sent
