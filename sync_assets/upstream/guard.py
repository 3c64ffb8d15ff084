"""Which addresses may be connected to, decided while connecting: no name can mean another one a moment later."""

from __future__ import annotations

import socket
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address

import aiohttp
from aiohttp.abc import ResolveResult

# Written out, since what Python's ipaddress calls global differs from version to version. IPv4 is what the IANA
# IPv4 Special-Purpose Address Registry lists, and one address that is global by number only.
_REFUSED_IPV4 = tuple(
    IPv4Network(network)
    for network in (
        "0.0.0.0/8",  # unspecified: this host
        "10.0.0.0/8",  # private
        "100.64.0.0/10",  # carrier-grade NAT, and a cloud's metadata
        "127.0.0.0/8",  # loopback
        "168.63.129.16/32",  # the host beneath an Azure machine
        "169.254.0.0/16",  # link-local, and the clouds' metadata
        "172.16.0.0/12",  # private
        "192.0.0.0/24",  # protocol assignments
        "192.0.2.0/24",  # documentation
        "192.88.99.0/24",  # 6to4 relays
        "192.168.0.0/16",  # private
        "198.18.0.0/15",  # benchmarks
        "198.51.100.0/24",  # documentation
        "203.0.113.0/24",  # documentation
        "224.0.0.0/4",  # multicast
        "240.0.0.0/4",  # reserved, broadcast
    )
)

# All of the IPv6 internet is in here. What is outside of it is refused without being named: loopback, IPv4 in IPv6
# (::ffff:0:0/96, ::/96), NAT64 (64:ff9b::/96, 64:ff9b:1::/48), private (fc00::/7, with the clouds' metadata),
# link-local, site-local, multicast.
_GLOBAL_IPV6 = IPv6Network("2000::/3")
_REFUSED_IPV6 = tuple(
    IPv6Network(network)
    for network in (
        "2001::/23",  # protocol assignments, Teredo among them
        "2001:db8::/32",  # documentation
        "2002::/16",  # 6to4
        "3fff::/20",  # documentation
    )
)


class RefusedAddressError(OSError):
    """None of a host's addresses may be connected to."""


def is_public(address: str) -> bool:
    """Whether this is an address on the internet: not private, local, reserved, nor another one in disguise.

    Args:
        address: as the system takes it for connecting. What is not written in the one canonical way is not public:
            the system would read `127.1`, `2130706433` and `0177.0.0.1` as loopback.
    """
    try:
        parsed: IPv4Address | IPv6Address = ip_address(address)
    except ValueError:
        return False
    if isinstance(parsed, IPv4Address):
        return not any(parsed in network for network in _REFUSED_IPV4)
    if parsed.scope_id is not None:  # of one link only
        return False
    return parsed in _GLOBAL_IPV6 and not any(parsed in network for network in _REFUSED_IPV6)


class PublicResolver(aiohttp.ThreadedResolver):
    """The system's resolver, of whose answers only public addresses are used."""

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        """The public addresses of a host.

        Raises:
            RefusedAddressError: it has addresses, and none of them is public.
            OSError: it has none, or nobody could say.
        """
        found = await super().resolve(host, port, family)
        public = [each for each in found if is_public(each["host"])]
        if found and not public:
            raise RefusedAddressError(f"{host} has no public address")
        return public


def public_socket(found: aiohttp.AddrInfoType) -> socket.socket:
    """The socket for the very address that is connected to next; an address in the URL meets no resolver.

    Raises:
        RefusedAddressError: the address is not public.
    """
    family, kind, protocol, _, address = found
    if not is_public(str(address[0])):
        raise RefusedAddressError(f"{address[0]} is not a public address")
    return socket.socket(family=family, type=kind, proto=protocol)
