"""The recording upstream itself: what tests of promises lean on must be able to fail."""

from __future__ import annotations

import http.client
import json
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from sync_assets_tests.recording_upstream import Call, RecordingUpstream, UpstreamProcess, assert_no_overlap, read_log


def put(url: str, path: str, body: bytes = b"{}", **headers: str) -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=10)
    try:
        connection.request("PUT", path, body, headers)
        answer = connection.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read()
    finally:
        connection.close()


def put_in_thread(url: str, path: str) -> Callable[[], object]:
    answers: list[object] = []
    thread = threading.Thread(target=lambda: answers.append(put(url, path)[0]), daemon=True)
    thread.start()

    def answer() -> object:
        thread.join(10)
        return answers[0] if answers else None

    return answer


def test_it_writes_down_what_came_and_decodes_quoted_parts(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    with RecordingUpstream(log) as upstream:
        headers = {"Idempotency-Key": "k", "Sync-Claim-Seq": "7", "Authorization": "Bearer sesame"}
        status, _, _ = put(upstream.url, "/accounts/a%2Fb/records/%2E%2E", b"[]", **headers)
        [call] = upstream.wait_for(lambda calls: calls and calls[0].ended, "the call ended")
    assert status == 200
    assert (call.method, call.account, call.record, call.key, call.claim_seq) == ("PUT", "a/b", "..", "k", 7)
    assert (call.body, call.authorization, call.status, call.aborted) == (b"[]", "Bearer sesame", 200, False)
    assert call.raw_path == "/accounts/a%2Fb/records/%2E%2E"
    [logged] = read_log(log)
    assert (logged.account, logged.body_hash, logged.authorized) == ("a/b", call.body_hash, True)
    assert "sesame" not in log.read_text()


def test_moods_the_most_specific_one_first() -> None:
    with RecordingUpstream() as upstream:
        upstream.answer(500, times=1)
        upstream.answer(429, account="a", headers={"Retry-After": "7"})
        upstream.answer(422, "a", "bad", body="no")
        answers = [put(upstream.url, f"/accounts/{path}") for path in ("a/records/bad", "a/records/x", "b/records/x")]
        again = put(upstream.url, "/accounts/b/records/x")
    assert [status for status, _, _ in answers] == [422, 429, 500]
    assert answers[0][2] == b"no"
    assert answers[1][1]["Retry-After"] == "7"
    assert again[0] == 200
    assert json.loads(again[2]) == {"external_id": "ext-b-x"}


def test_it_stalls_until_released() -> None:
    with RecordingUpstream() as upstream:
        upstream.stall("a")
        answer = put_in_thread(upstream.url, "/accounts/a/records/x")
        [call] = upstream.wait_for(lambda calls: len(calls) == 1, "the request arrived")
        assert call.ended is None
        upstream.release("a")
        assert answer() == 200
        assert put(upstream.url, "/accounts/a/records/x")[0] == 200


@pytest.mark.parametrize("mood", ["stall", "trickle"])
def test_it_notices_a_client_that_goes_away(mood: str) -> None:
    with RecordingUpstream() as upstream:
        getattr(upstream, mood)()
        host, port = urlsplit(upstream.url).netloc.split(":")
        with socket.create_connection((host, int(port))) as client:
            client.sendall(b"PUT /accounts/a/records/x HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n")
            upstream.wait_for(lambda calls: len(calls) == 1, "the request arrived")
        [call] = upstream.wait_for(lambda calls: calls[0].ended, "the server saw the client go")
    assert call.aborted


def test_it_cuts_the_connection() -> None:
    with RecordingUpstream() as upstream:
        upstream.drop()
        with pytest.raises((ConnectionError, http.client.HTTPException)):
            put(upstream.url, "/accounts/a/records/x")
        [call] = upstream.wait_for(lambda calls: calls and calls[0].ended, "the call ended")
    assert (call.status, call.body) == (None, b"{}")


def test_as_a_process_it_is_used_the_same_way(tmp_path: Path) -> None:
    with UpstreamProcess(tmp_path) as upstream:
        upstream.answer(503, account="a", times=1)
        assert [put(upstream.url, "/accounts/a/records/x")[0] for _ in range(2)] == [503, 200]
        calls = upstream.wait_for(lambda calls: len(calls) == 2 and calls[1].ended, "both calls ended")
    assert [(call.account, call.status) for call in calls] == [("a", 503), ("a", 200)]


def test_waiting_in_vain_says_for_what() -> None:
    with RecordingUpstream() as upstream, pytest.raises(AssertionError, match=r"not within 0.1 s: a call"):
        upstream.wait_for(lambda calls: calls, "a call", timeout=0.1)


def call_of(claim_seq: int, started: float, ended: float | None, account: str = "a") -> Call:
    return Call(0, "PUT", "/", account, "r", "k", claim_seq, "", True, started, ended)


def test_overlap_of_two_claims_is_found() -> None:
    assert_no_overlap([call_of(1, 0, 1), call_of(2, 1, 2), call_of(2, 1.5, 3), call_of(9, 0, 9, account="b")])
    for first in (call_of(1, 0, 2), call_of(1, 0, None)):
        with pytest.raises(AssertionError, match=r"claims 1 and 2 were at work together"):
            assert_no_overlap([call_of(2, 1, 3), first])
