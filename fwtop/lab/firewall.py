"""The victim's own nftables rules, and counters of what the clients send."""

from __future__ import annotations

import json
from typing import Any

from fwtop.lab import network as net
from fwtop.lab.namespaces import run
from fwtop.lab.traffic.vectors import Scenario

_ACCEPT = """
        ct state established,related accept
        ct state invalid drop
        iif "lo" accept
        meta l4proto { icmp, ipv6-icmp } accept
        tcp dport { 22, 80, 443 } ct state new accept
        udp dport 53 accept"""


def victim_rules(scenario: Scenario) -> str:
    """Return the ruleset: drop by default (stateful), track and accept everything (open), or nothing."""
    if scenario.firewall == "none":
        return ""
    policy = "drop" if scenario.firewall == "stateful" else "accept"
    lines = [_ACCEPT.lstrip("\n")]
    for port in scenario.open_ports:
        protocol, _, number = port.partition("/")
        lines.append(f"        {protocol} dport {number} accept")
    return (
        "table inet filter {\n    chain input {\n"
        f"        type filter hook input priority filter; policy {policy};\n"
        + "\n".join(lines)
        + "\n    }\n}\n"
    )


def install_victim_rules(victim: str, scenario: Scenario) -> None:
    """Load the victim's ruleset."""
    if rules := victim_rules(scenario):
        run("ip", "netns", "exec", victim, "nft", "-f", "-", text=rules)


def install_counters(attacker: str, clients: list[str]) -> None:
    """Count each client's packets in postrouting: unlike the flood's, they come from real sockets.

    And all that leaves, which includes what the kernel says by itself (multicast listener reports).
    """
    families = {"4": [a for a in clients if ":" not in a], "6": [a for a in clients if ":" in a]}
    sets, rules = [], []
    for family, addresses in families.items():
        kind, keyword, icmp = (
            ("ipv4_addr", "ip", "icmp") if family == "4" else ("ipv6_addr", "ip6", "ipv6-icmp")
        )
        if addresses:
            elements = ", ".join(f"{one} . {name}" for one in addresses for name in ("tcp", "udp", icmp))
            typed = f"type {kind} . inet_proto; counter; elements = {{ {elements} }}"
            sets.append(f"    set clients{family} {{ {typed} }}")
            rules.append(f"        {keyword} saddr . meta l4proto @clients{family}")
    text = (
        "table inet lab {\n    counter sockets { }\n" + "\n".join(sets) + "\n    chain leaving {\n"
        "        type filter hook postrouting priority 300; policy accept;\n"
        f'        oifname != "{net.ATTACKER_INTERFACE}" accept\n        counter name sockets\n'
        + "\n".join(rules)
        + "\n    }\n}\n"
    )
    run("ip", "netns", "exec", attacker, "nft", "-f", "-", text=text)


def read_counters(attacker: str) -> dict[tuple[str, str], tuple[int, int]]:
    """Return packets and bytes (including link headers) that each client has sent.

    Keys are address and protocol in nft's spelling: tcp, udp, icmp, ipv6-icmp.
    """
    listing = _listed(attacker, "table", "inet", "lab")
    counts: dict[tuple[str, str], tuple[int, int]] = {}
    for item in listing:
        for entry in item.get("set", {}).get("elem", []):
            element = entry["elem"]
            counter = element["counter"]
            address, protocol = element["val"]["concat"]
            counts[address, str(protocol)] = (
                counter["packets"],
                counter["bytes"] + 14 * counter["packets"],
            )
    return counts


def read_leaving(attacker: str) -> int:
    """Return the packets that sockets and kernel have sent to the victim."""
    listing = _listed(attacker, "counter", "inet", "lab", "sockets")
    return sum(item["counter"]["packets"] for item in listing if "counter" in item)


def _listed(netns: str, *what: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(run("ip", "netns", "exec", netns, "nft", "-j", "list", *what))[
        "nftables"
    ]
    return found
