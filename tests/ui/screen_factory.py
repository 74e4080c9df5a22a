"""Snapshots of the scenes that the screen must show well, built by hand with a fixed clock."""

from __future__ import annotations

from msgspec.structs import replace
from screen_parts import (
    NOW,
    PPS,
    QUERY,
    SECONDS,
    attack,
    block_rule,
    conntrack,
    countries,
    falling,
    few_addresses,
    joined,
    ledger,
    networks,
    payload,
    payloads,
    ports,
    prefixes,
    proposals,
    share,
    with_fates,
)
from screen_vectors import syn_proposals, table_attack, vectors

from fwtop.console.wants import ALARMS, ALLOW
from fwtop.model.harm import ClientLoss
from fwtop.model.rule import Kind, RuleStatus, State
from fwtop.model.service import Service
from fwtop.model.text import safe_text
from fwtop.model.traffic.counters import TcpService
from fwtop.model.traffic.snapshot import (
    Judgement,
    LedgerRow,
    Origin,
    Sampling,
    ServiceUse,
    Snapshot,
    Source,
    Sources,
    Tables,
    Totals,
)


def snapshot(**changes: object) -> Snapshot:
    tables = Tables(
        Totals(round(PPS * SECONDS), round(PPS * SECONDS * 90), PPS, PPS * 90 * 8, 100_000, 560_000),
        Sampling(16.0, 58_500, 0),
        ledger(0.6),
        Sources(few_addresses(), prefixes(), networks(), countries()),
        ports(),
        payloads(),
    )
    judgement = Judgement((attack(),), proposals(), payloads(), "2 m of traffic before the attack", 41_000)
    base = Snapshot(
        "web1",
        Origin("live", ("eth0",)),
        NOW - SECONDS,
        SECONDS,
        tables,
        judgement,
        conntrack(),
        guardian="ready",
        softirq_share=0.41,
        tcp=TcpService(131, 44.0, 3_500.0),
    )
    return replace(with_fates(base), **changes)  # type: ignore[arg-type]


def services() -> tuple[ServiceUse, ...]:
    """Services of a host: busy, seldom asked, new, and one on which nothing is known yet."""

    def rates(
        packets: float, connections: float, requests: float, failures: float = 0.0
    ) -> tuple[float, ...]:
        whole = (packets, connections, requests, failures)
        return (*whole, *(rate / 8 for rate in whole), 0.0, whole[2] / 4)

    nginx = Service("tcp", 443, "nginx", 588.0, user="www-data", unit="nginx.service")
    return (
        ServiceUse(nginx, rates(588, 12, 97, 0), rates(610, 14, 110, 1), 3_600.0, None, 212, 1_840),
        ServiceUse(
            replace(nginx, port=80, pps=168.0), rates(168, 3, 3), rates(170, 4, 4), 3_600.0, 90.0, 31, 402
        ),
        ServiceUse(
            Service("tcp", 22, "sshd", 42.0), rates(42, 0, 12, 1), rates(60, 0.1, 20, 1), 900.0, None, 2, 9
        ),
        ServiceUse(Service("udp", 53, "named", 8.0, ("192.0.2.10",)), rates(8, 0, 8, 0), (), 3.0, None, 4, 0),
        ServiceUse(Service("tcp", 25, "exim4", 0.0, ("127.0.0.1",))),
    )


def later(shot: Snapshot, seconds: float) -> Snapshot:
    return replace(shot, started=shot.started + seconds)


def calm() -> Snapshot:
    base = snapshot()
    quiet = tuple(
        replace(source, share=share(part, pps=840, error=0.02), who="client")
        for source, part in zip(few_addresses(9), falling(9, 0.2, 0.8), strict=True)
    )
    served = tuple(
        replace(port, share=share(part, pps=840, error=0.02))
        for port, part in zip(ports()[2:], (0.7, 0.2, 0.05, 0.01), strict=True)
    )
    bytes_ = tuple(replace(item, share=share(item.share.share, pps=840)) for item in payloads()[2:])
    tables = replace(
        base.tables,
        totals=Totals(2520, 1_890_000, 840.0, 5_040_000.0, 2510, 4),
        sampling=Sampling(1.0, 2520, 0),
        ledger=(LedgerRow("delivered", "to a socket", 2516, 838.7), LedgerRow("ip", "NO_SOCKET", 4, 1.3)),
        sources=Sources(quiet, quiet[:3], networks(), countries()),
        ports=served,
        payloads=bytes_,
    )
    return replace(
        base,
        tables=tables,
        judgement=Judgement(payloads=bytes_, normal_pps=(500.0, 900.0), services=services()),
        wants=(ALLOW, ALARMS),
        conntrack=conntrack(0.01, new_per_s=15.2),
        softirq_share=0.02,
        tcp=TcpService(245, 15.1, 780.0),
    )


def spoofed() -> Snapshot:
    base = snapshot()
    many = tuple(
        Source(
            f"{(n * 37) % 223 + 1}.{n * 91 % 256}.{n * 53 % 256}.{n * 17 % 256}",
            share(0.0002, error=0.0002),
            0.0,
        )
        for n in range(50)
    )
    attacks = (
        attack(
            kind="syn_flood",
            title="SYN flood",
            target="tcp/443",
            sources="spoofed",
            bps=0.78 * PPS * 60 * 8,
            share=0.78,
            pps=0.78 * PPS,
            spoofed=True,
            evidence=(
                "243k SYN a second to tcp 443, 0.02 % of them completed",
                "201k sources in 3 s, nearly all seen once, spread evenly over the whole address space",
            ),
        ),
        attack(
            kind="dns_amplification",
            title="DNS amplification",
            share=0.14,
            pps=0.14 * PPS,
            confidence=0.91,
            target="udp from 53",
            sources="~340 sources",
        ),
    )
    tables = replace(
        base.tables, sources=Sources(many, prefixes()[1:], (), ()), sampling=Sampling(16.0, 58_500, 312)
    )
    return with_fates(
        replace(
            base,
            tables=tables,
            judgement=replace(base.judgement, attacks=attacks, proposals=syn_proposals()),
            conntrack=conntrack(0.68, new_per_s=41_200.0, seconds_to_full=2.0, insert_failed=93),
        )
    )


def conntrack_full() -> Snapshot:
    base = spoofed()
    full = conntrack(
        1.0, new_per_s=9_100.0, seconds_to_full=0.0, insert_failed=4102, drop=61_930, early_drop=712
    )
    attacks = (*base.judgement.attacks, table_attack(full, base.judgement.attacks[0]))
    base = joined(replace(base, judgement=replace(base.judgement, attacks=attacks)))
    return replace(
        base,
        conntrack=full,
        tcp=TcpService(70, 3.0, 610.0),
        notes=("the connection table is full: new clients are refused",),
    )


def provisional(seconds_left: float = 21.0) -> Snapshot:
    base = snapshot()
    status = RuleStatus(
        block_rule("7"),
        State.PROVISIONAL,
        288_000,
        25_920_000,
        95_400.0,
        NOW + seconds_left + 2,
        NOW + seconds_left,
        entries={"203.0.113.1": 120_000},
    )
    kept = RuleStatus(
        replace(
            block_rule("5"),
            summary="limit udp src 53 to 1.00k/s per /24",
            kind=Kind.HASHLIMIT,
            created=NOW - 200,
            predicted_pps=None,
        ),
        State.CONFIRMED,
        1_200_000,
        90_000_000,
        36_100.0,
        NOW + 392,
    )
    sources = tuple(
        replace(source, dropped_share=1.0, dropped_low=1.0, dropped_high=1.0, active_rule="7")
        if number < 3
        else source
        for number, source in enumerate(few_addresses())
    )
    tables = replace(
        base.tables, sources=replace(base.tables.sources, address=sources), ledger=ledger(0.6, "7")
    )
    return with_fates(replace(base, tables=tables, mitigations=(status, kept)))


def trial(seconds_left: float = 21.0) -> Snapshot:
    """A rule on trial drops nearly all of the flood; clients are as well off as before."""
    base = snapshot()
    string, _, *offers = proposals()
    assert string.rule is not None
    rule = replace(
        string.rule,
        id="8",
        created=NOW - 9,
        created_by="key",
        predicted_attack_share=0.992,
        predicted_collateral_share=0.001,
        predicted_pps=0.82 * PPS,
    )
    status = RuleStatus(
        rule, State.PROVISIONAL, 2_320_000, 209_000_000, 0.826 * PPS, NOW + 23, NOW + seconds_left
    )
    rows = ((0.826, "netfilter", "NETFILTER_DROP", "8"), (0.006, "netfilter", "NETFILTER_DROP", None))
    rows += ((0.002, "ip", "NO_SOCKET", None), (0.166, "delivered", "accepted", None))
    book = tuple(
        LedgerRow(layer, reason, round(part * PPS * SECONDS), part * PPS, by)
        for part, layer, reason, by in rows
    )
    more = tuple(
        replace(one, attack_share=max(one.attack_share, 0.997), already_share=0.992) if one.rule else one
        for one in offers
    )
    return with_fates(
        replace(
            base,
            tables=replace(base.tables, ledger=book),
            judgement=replace(base.judgement, proposals=more),
            mitigations=(status,),
            tcp=TcpService(212, 102.0, 8_400.0),
        )
    )


def protected() -> Snapshot:
    """The same rule, confirmed."""
    base = trial()
    status = replace(base.mitigations[0], state=State.CONFIRMED, confirm_by=None, expires=NOW + 590)
    return replace(base, mitigations=(status,))


def harm(shown: Snapshot | None = None) -> Snapshot:
    """The rule cuts every client off."""
    shown = replace(shown or protected(), tcp=TcpService(2, 0.0, 12.0))
    return replace(shown, losses=(ClientLoss(shown.mitigations[0].rule.id, "80/tcp", 105.0, 0.0, 0.97),))


POISON = b"GET / [/] HTTP [@click=app.quit]x[/] \x1b[2J\x1b]0;owned\x07 \xe2\x80\xae\x9b31m [red]"


def poison() -> Snapshot:
    base = snapshot()
    bad = payload(POISON, 0.5, dns=None)
    named = payload(QUERY, 0.2, offset=12, dns=safe_text("[@click=app.quit]x.\u202e\x1b[31m.example"))
    name = safe_text(b"[bold]Evil\x1b[31m \xe2\x80\xaeAS[/]")
    sources = tuple(replace(source, as_name=name, asn=64666) for source in few_addresses(5))
    tables = replace(
        base.tables, payloads=(bad, named), sources=replace(base.tables.sources, address=sources)
    )
    judgement = replace(
        base.judgement, payloads=(), attacks=(attack(title=safe_text("flood [/] [@click=app.quit]x")),)
    )
    return replace(base, host=safe_text("web[/]1\x1b"), tables=tables, judgement=judgement)


SCENES = {
    "calm": calm,
    "few_sources": snapshot,
    "spoofed": spoofed,
    "conntrack_full": conntrack_full,
    "provisional": provisional,
    "trial": trial,
    "protected": protected,
    "harm": harm,
    "vectors": lambda: vectors(snapshot()),
    "poison": poison,
}
