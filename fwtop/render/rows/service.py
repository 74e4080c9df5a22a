"""Rows of this host's services: what each gets now and usually, and how many clients it has."""

from __future__ import annotations

from functools import partial

from fwtop.model.traffic.snapshot import USES, ServiceUse
from fwtop.render.numbers import duration_words, si
from fwtop.render.rows.field import Field, RowType, Unit


def _by_name(item: ServiceUse, *, usual: bool) -> dict[str, float] | None:
    """Return the rates with the names that JSON has for them; None if they aren't known."""
    rates = item.usual if usual else item.now
    names = (name.replace("'s", "").replace(" ", "_") for name in USES)
    return {name: round(rate, 3) for name, rate in zip(names, rates, strict=True)} if rates else None


def _told(name: str, item: ServiceUse) -> str:
    usual, most = item.rate(name, usual=True), item.rate(f"one address's {name}", usual=True)
    known = "what is usual is not known yet" if usual is None else f"usually up to {si(usual)}"
    return f"{si(item.rate(name) or 0.0)} a second, {known}" + (
        f", from one address {si(most)}" if most else ""
    )


def service_name(item: ServiceUse) -> str:
    """Write a service as "tcp/80"."""
    return f"{item.service.protocol}/{item.service.port}"


def _at(item: ServiceUse) -> str:
    addresses = item.service.addresses
    several = f"{len(addresses)} addresses" if addresses else "everywhere"
    return addresses[0] if len(addresses) == 1 else several


def _learned(item: ServiceUse) -> str:
    if item.waits is not None:
        return f"far more than usual for {duration_words(item.waits)}, not learned before it has lasted"
    return f"from {duration_words(item.seconds)} of calm in which it was asked"


_SHOWN = (("connections", "conn/s"), ("requests", "req/s"))
SERVICE = RowType(
    of=ServiceUse,
    key=lambda item: f"{item.service.key}",
    search=lambda item: f"{service_name(item)} {item.service.words} {item.service.name}",
    fields=(
        Field("protocol", value="service.protocol"),
        Field("port", value="service.port"),
        Field("addresses", value="service.addresses"),
        Field("name", value="service.name", heading="listens", width=10, grow=1, keep=5),
        Field("now", value=partial(_by_name, usual=False)),
        Field("usual", value=partial(_by_name, usual=True)),
        Field("seconds", digits=1),
        Field("waits", digits=1),
        Field(
            "clients",
            Unit.COUNT,
            heading="clients",
            width=7,
            keep=2,
            words="{clients} in the last minute, {long_known} known for long",
        ),
        Field("long_known", Unit.COUNT, heading="known", width=6, keep=4),
        Field("service", value=service_name, json=False, heading="service", width=9, grow=1),
        Field("at", value=_at, json=False, heading="at", width=15, grow=1, keep=9),
        Field("who", value="service.words", json=False, label="service"),
        *(Field(name, value=partial(_told, name), json=False) for name in USES[:4]),
        *(
            Field(
                f"now_{name}",
                Unit.PPS,
                partial(ServiceUse.rate, name=name),
                json=False,
                heading=short,
                width=6,
                keep=3,
            )
            for name, short in _SHOWN
        ),
        *(
            Field(
                f"usual_{name}",
                Unit.PPS,
                partial(ServiceUse.rate, name=name, usual=True),
                json=False,
                heading="usual",
                width=5,
                keep=6,
            )
            for name, _ in _SHOWN
        ),
        Field("learned", value=_learned, json=False),
    ),
    columns="service name at "
    "now_connections usual_connections now_requests usual_requests clients long_known",
    details="who packets connections requests failures clients learned",
    sorts=(("requests", lambda item: item.rate("requests") or 0.0),),
    title=service_name,
    packets=lambda item: f"{item.service.protocol}.dstport == {item.service.port}",
)
