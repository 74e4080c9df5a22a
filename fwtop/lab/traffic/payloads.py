"""Payloads as a scenario describes them: constant pieces, random pieces, and protocol messages."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from fwtop.lab.traffic import answers, dns

Maker = Callable[[random.Random, dict[str, Any]], bytes]
MAKERS: dict[str, Maker] = {
    function.__name__: function
    for function in (
        dns.dns_header, dns.dns_query, dns.dns_response,
        answers.ntp_monlist, answers.snmp_response, answers.ssdp_response,
        answers.memcached_response, answers.cldap_response, answers.chargen_response,
        answers.qotd_response, answers.rpcbind_response, answers.netbios_response,
        answers.ripv1_response, answers.mssql_response, answers.mdns_response,
        answers.ws_discovery_response, answers.coap_response, answers.steam_response,
        answers.sip_response, answers.tftp_response, answers.quic_initial,
        answers.isakmp_response, answers.bacnet_response, answers.dvr_dhcpdiscover_response,
        answers.ubiquiti_response, answers.arms_response, answers.l2tp_response,
        answers.openvpn_response, answers.plex_response, answers.bittorrent_response,
        answers.quake_response, answers.strange_response,
    )
}  # fmt: skip


def build(parts: tuple[dict[str, Any], ...], rng: random.Random) -> tuple[bytes, int, int, bool]:
    """Join a payload's pieces; raises ValueError.

    Returns the bytes, offset and length of the piece that is random in each packet, and whether that consists
    of letters. A piece is one of text, hex, random, letters or zeros (number of bytes), dns_label (a random
    label of that many letters, preceded by its length), dns_name, or make (a function of MAKERS).
    """
    data, at, size, letters = b"", 0, 0, False
    for part in parts:
        drawn = next((key for key in ("random", "letters", "dns_label") if key in part), None)
        if drawn is None:
            data += _constant(part, rng)
            continue
        wanted = int(part[drawn])
        if size or wanted % 8 or not 0 < wanted <= 1472 or (drawn == "dns_label" and wanted > 56):
            raise ValueError(f"payload: {drawn} must be given once, and be a multiple of 8 that fits")
        letters = drawn != "random"
        data += bytes([wanted]) if drawn == "dns_label" else b""
        at, size = len(data), wanted
        data += bytes(rng.choices(b"abcdefghijklmnop", k=wanted)) if letters else rng.randbytes(wanted)
    return data, at, size, letters


def _constant(part: dict[str, Any], rng: random.Random) -> bytes:
    if "text" in part:
        return str(part["text"]).encode()
    if "hex" in part:
        return bytes.fromhex(part["hex"])
    if "zeros" in part:
        return bytes(int(part["zeros"]))
    if "dns_name" in part:
        return dns.dns_wire(part["dns_name"])
    maker = MAKERS.get(str(part.get("make")))
    if maker is None:
        raise ValueError(
            f"payload: {sorted(part)[0]!r} is not text, hex, random, letters, zeros, dns_name, make"
        )
    return maker(rng, part)
