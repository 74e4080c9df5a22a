"""What a flood is called, and of which kind it is: automations go by the kind."""

from __future__ import annotations

from random import Random

import pytest
from analysis_factory import ethernet, ip, make_batch, make_frames, make_tables, make_window, udp
from analysis_flows import HOST, Frame, hosts, segment

from fwtop.incidents.advisor import Advisor
from fwtop.model.traffic.severity import Harm
from fwtop.model.traffic.snapshot import Incident

RNG = Random(5)
SCANNER = bytes([45, 146, 165, 208])


def judged(packets: list[bytes], *, pps: float) -> Incident:
    """Return the one incident of a live window of three seconds that has packets at a rate."""
    frames: list[Frame] = [(3.0 * place / len(packets), packet) for place, packet in enumerate(packets)]
    window = make_window(make_batch(frames, weight=3.0 * pps / len(packets)), 3.0, live=True)
    (found,) = Advisor().judge(window, make_tables(window)).attacks
    return found


def probes() -> list[bytes]:
    """A SYN to each of 8,450 ports, as masscan sends them."""
    ports = RNG.sample(range(1, 8_451), 8_450)
    return [segment(SCANNER, HOST, 61_000, port, "S", seq=RNG.randrange(1 << 32)) for port in ports]


@pytest.mark.parametrize(
    ("pps", "kind", "harm"),
    [(27_000, "syn_flood", Harm.ATTACK), (5_000, "syn_flood", Harm.ATTACK), (1_000, "port_scan", Harm.ABUSE)],
)
def test_a_scanner_at_the_rate_of_a_flood_is_a_flood_over_many_ports(
    pps: float, kind: str, harm: Harm
) -> None:
    found = judged(probes(), pps=pps)
    assert found.kind == kind
    assert found.severity.harm is harm
    assert "by 45.146.165.208" in found.title
    assert (kind == "port_scan") != ("over many ports" in found.title)


def test_syns_from_this_hosts_own_address_are_a_land_attack() -> None:
    found = judged([segment(HOST, HOST, 80, 80, "S", seq=n) for n in range(2_000)], pps=5_000)
    assert (found.kind, found.title) == ("syn_flood", "LAND attack")
    assert found.spoofed


@pytest.mark.parametrize(
    ("line", "title"),
    [
        (b"INVITE sip:100@10.10.10.10 SIP/2.0\r\nVia: SIP/2.0/UDP ", "UDP flood of SIP INVITE requests"),
        (b"REGISTER sip:10.10.10.10 SIP/2.0\r\nVia: SIP/2.0/UDP ", "UDP flood of SIP REGISTER requests"),
        (b"XYZ something else that nobody knows: ", "UDP flood"),
    ],
)
def test_a_udp_flood_of_requests_says_of_which(line: bytes, title: str) -> None:
    senders = hosts(Random(3), 4)
    packets = [
        ethernet(
            ip(senders[n % 4], HOST, 17, udp(5_060, 5_060, line + RNG.randbytes(8).hex().encode()), ttl=57)
        )
        for n in range(3_000)
    ]
    found = judged(packets, pps=6_000)
    assert (found.kind, found.title) == ("udp_flood", title)


def test_a_flood_that_has_just_begun_is_as_severe_as_its_busiest_second() -> None:
    """A mean of three seconds called it unusual for its first, and nothing stopped it meanwhile."""
    calm = [{"make": "connections", "count": 60, "dport": 443}]
    young = {"dport": 27_015, "count": 2_000, "start": 2.6}
    frames = make_frames([*calm, young], 3.0)
    window = make_window(make_batch(frames), 3.0, live=True)
    (found,) = Advisor().judge(window, make_tables(window)).attacks
    assert (found.kind, found.severity.harm) == ("udp_flood", Harm.ATTACK)
    assert found.pps < 1_000
