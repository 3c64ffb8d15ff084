"""P11, P12: what may be connected to is decided by the address that is connected to, whatever the URL looks like."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from sync_assets.clock import Deadline
from sync_assets.upstream import AuthFailed, Rejected, RetryLater, SyncError, UpstreamClient, guard
from sync_assets.upstream.guard import is_public
from sync_assets_tests.recording_upstream import PATIENCE, RecordingUpstream


@pytest.mark.parametrize(
    "address",
    [
        *("0.0.0.0", "0.1.2.3", "10.0.0.1", "100.64.0.1", "100.100.100.200", "127.0.0.1", "127.255.255.254"),  # noqa: S104
        *("169.254.169.254", "169.254.170.2", "172.16.0.1", "172.31.255.255", "192.168.0.1", "168.63.129.16"),
        *("192.0.0.192", "192.0.2.1", "192.88.99.1", "198.18.0.1", "198.19.255.255", "198.51.100.1", "203.0.113.1"),
        *("224.0.0.1", "239.255.255.255", "240.0.0.1", "255.255.255.255"),
        *("::", "::1", "::127.0.0.1", "::8.8.8.8", "::ffff:127.0.0.1", "::ffff:8.8.8.8", "::ffff:0:127.0.0.1"),
        *("64:ff9b::7f00:1", "64:ff9b::808:808", "64:ff9b:1::1", "100::1", "fc00::1", "fd00:ec2::254", "fe80::1"),
        *("fe80::1%1", "2606:4700::1111%1", "fec0::1", "ff02::1", "2001::1", "2001:0:4136:e378:8000:63bf:3fff:fdd2"),
        *(
            "2001:10::1",
            "2001:20::1",
            "2001:db8::1",
            "2002:7f00:1::1",
            "2002:808:808::1",
            "3fff::1",
            "5f00::1",
            "4000::1",
        ),
        # not the one way to write an address: the system reads these as loopback
        *("127.1", "2130706433", "0x7f000001", "0177.0.0.1", "127.0.0.01", "localhost", ""),
    ],
)
def test_not_on_the_internet(address: str) -> None:
    assert not is_public(address)


@pytest.mark.parametrize(
    "address",
    [
        *("1.1.1.1", "8.8.8.8", "9.255.255.255", "11.0.0.0", "100.63.255.255", "100.128.0.0", "126.0.0.1", "128.0.0.1"),
        *("169.253.0.1", "172.15.255.255", "172.32.0.0", "192.167.0.1", "192.0.1.1", "198.20.0.0", "223.255.255.255"),
        *("2606:4700::1111", "2a00:1450:4001::8a", "2001:4860:4860::8888", "2003::1", "2400:cb00::1"),
    ],
)
def test_on_the_internet(address: str) -> None:
    assert is_public(address)


class Network:
    """A name service of the test's, and a note of every address that is really connected to."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.names: dict[str, list[list[str]]] = {}
        self.connected: list[str] = []
        self.asked: list[str] = []
        real_lookup, real_connect = socket.getaddrinfo, asyncio.SelectorEventLoop.sock_connect

        def lookup(host: str, port: int, *more: Any, **options: Any) -> Any:
            if host not in self.names:
                return real_lookup(host, port, *more, **options)
            self.asked.append(host)
            answers = self.names[host]
            addresses = answers.pop(0) if len(answers) > 1 else answers[0]
            return [
                (socket.AF_INET6, socket.SOCK_STREAM, 6, "", (address, port, 0, 0))
                if ":" in address
                else (socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port))
                for address in addresses
            ]

        async def connect(loop: Any, sock: socket.socket, address: Any) -> None:
            self.connected.append(address[0])
            await real_connect(loop, sock, address)

        patch.setattr(socket, "getaddrinfo", lookup)
        patch.setattr(asyncio.SelectorEventLoop, "sock_connect", connect)

    def say(self, name: str, *answers: list[str]) -> None:
        """Let a name mean these addresses; with several answers, one after the other."""
        self.names[name] = list(answers)


@pytest.fixture
def network(monkeypatch: pytest.MonkeyPatch) -> Network:
    return Network(monkeypatch)


@pytest.fixture
def upstream() -> Iterator[RecordingUpstream]:
    with RecordingUpstream() as server:
        yield server


@pytest.fixture
def loopback_is_public(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests in which something must be reached: 127.0.0.1 stands for an address on the internet."""
    refused = tuple(network for network in guard._REFUSED_IPV4 if str(network) != "127.0.0.0/8")
    monkeypatch.setattr(guard, "_REFUSED_IPV4", refused)


def fault(*urls: str, allow_private: bool = False) -> SyncError:
    """What the last request of one client comes to; those before it may succeed."""

    async def run() -> SyncError:
        async with UpstreamClient(allow_private=allow_private) as client:
            for url in urls[:-1]:
                await client.request("PUT", url, deadline=Deadline.after(PATIENCE))
            with pytest.raises(SyncError) as caught:
                await client.request("PUT", urls[-1], deadline=Deadline.after(PATIENCE))
        return caught.value

    return asyncio.run(run())


@pytest.mark.parametrize(
    "host",
    [
        *("127.0.0.1", "127.1", "2130706433", "0x7f000001", "0x7f.1", "0177.0.0.1", "017700000001", "127.0.0.1."),
        *("0", "0.0.0.0", "169.254.169.254", "2852039166", "0xa9fea9fe", "10.0.0.1", "[::1]", "[::]"),  # noqa: S104
        *("[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "[::127.0.0.1]", "[64:ff9b::7f00:1]", "[2002:7f00:1::]"),
        *("[fd00:ec2::254]", "[fe80::1%25lo]", "localhost", "LOCALHOST"),
    ],
)
def test_every_way_to_write_a_private_address_is_refused(
    network: Network, upstream: RecordingUpstream, host: str
) -> None:
    port = upstream.url.rpartition(":")[2]
    refused = fault(f"http://{host}:{port}/accounts/a/records/r")
    assert isinstance(refused, AuthFailed), refused
    assert network.connected == []
    assert upstream.calls == []


def test_the_refusal_names_the_host_and_the_way_out_and_no_more(network: Network) -> None:
    """Which address a name has inside is not for whoever edits a row to learn."""
    network.say("inside.example", ["10.1.2.3"])
    refused = fault("http://inside.example:8080/secret/path?token=hidden")
    assert refused.detail == (
        "the host inside.example is not on the internet, and nothing was sent to it; set base_url to a public address, "
        "or SYNC_ALLOW_PRIVATE_UPSTREAMS=1 if upstreams may be in a private network"
    )


@pytest.mark.parametrize(
    "addresses", [["10.0.0.1"], ["127.0.0.1", "::1"], ["169.254.169.254", "fd00:ec2::254"], ["::ffff:10.0.0.1"]]
)
def test_a_name_for_private_addresses_only_is_refused(network: Network, addresses: list[str]) -> None:
    network.say("rebound.example", addresses)
    assert isinstance(fault("https://rebound.example/x"), AuthFailed)
    assert network.connected == []


def test_a_name_that_means_nothing_is_a_passing_fault(network: Network, monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody(*_: Any, **__: Any) -> Any:
        raise socket.gaierror(socket.EAI_NONAME, "nobody knows")

    monkeypatch.setattr(socket, "getaddrinfo", nobody)
    assert isinstance(fault("https://nowhere.example/x"), RetryLater)


@pytest.mark.usefixtures("loopback_is_public")
@pytest.mark.parametrize("addresses", [["10.0.0.1", "127.0.0.1"], ["127.0.0.1", "::1", "192.168.0.1"]])
def test_of_good_and_bad_addresses_only_the_good_are_used(
    network: Network, upstream: RecordingUpstream, addresses: list[str]
) -> None:
    network.say("both.example", addresses)
    port = upstream.url.rpartition(":")[2]

    async def run() -> int:
        async with UpstreamClient() as client:
            url = f"http://both.example:{port}/accounts/a/records/r"
            return (await client.request("PUT", url, deadline=Deadline.after(PATIENCE))).status

    assert asyncio.run(run()) == 200
    assert network.connected == ["127.0.0.1"]


@pytest.mark.usefixtures("loopback_is_public")
def test_a_name_that_changes_its_mind_is_asked_once_and_held_to_its_answer(
    network: Network, upstream: RecordingUpstream
) -> None:
    """What was checked is what is connected to; a second connection is a second question, and a second check."""
    network.say("moving.example", ["127.0.0.1"], ["10.0.0.1"])
    url = f"http://moving.example:{upstream.url.rpartition(':')[2]}/accounts/a/records/r"
    upstream.drop()  # each sending is then tried again on a connection of its own
    assert isinstance(fault(url), RetryLater)
    assert len(network.connected) >= 3
    upstream.clear()
    assert set(network.connected) == {"127.0.0.1"}
    assert network.asked == ["moving.example"]
    assert isinstance(fault(url), AuthFailed)
    assert set(network.connected) == {"127.0.0.1"}


@pytest.mark.usefixtures("loopback_is_public")
def test_a_redirect_into_the_network_is_not_followed(network: Network, upstream: RecordingUpstream) -> None:
    upstream.answer(302, headers={"Location": "http://169.254.169.254/latest/meta-data/"})
    assert isinstance(fault(f"{upstream.url}/accounts/a/records/r"), Rejected)
    assert network.connected == ["127.0.0.1"]


def test_allowed_by_the_setting_it_is_as_any_other(network: Network, upstream: RecordingUpstream) -> None:
    upstream.answer(422, "b")
    port = upstream.url.rpartition(":")[2]
    seen = fault(
        f"{upstream.url}/accounts/a/records/r", f"http://localhost:{port}/accounts/b/records/r", allow_private=True
    )
    assert isinstance(seen, Rejected)
    assert len(upstream.calls) == 2
