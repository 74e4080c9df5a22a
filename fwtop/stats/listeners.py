"""How many accepted packets each listening socket got, estimated from samples."""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from fwtop.model.traffic.packets import F64, U16, Fragment, Mask, PacketBatch
from fwtop.model.traffic.snapshot import Listener
from fwtop.model.traffic.window import Window
from fwtop.stats.ports import SERVICES

_NUMBERS = {"tcp": 6, "udp": 17}
_MOST = 64
_Ports = dict[str, U16]  # protocol → ports in ascending order
_Rates = dict[str, F64]  # protocol → packets a second of each of those ports


def with_rates(listeners: tuple[Listener, ...], window: Window) -> tuple[Listener, ...]:
    """Return the listeners with what each got, the busiest first.

    Without any (nobody could be asked) the well-known services stand in.
    """
    if not len(window.accepted):
        return listeners[:_MOST]
    known = listeners or tuple(Listener(protocol, port, "") for protocol, port in SERVICES)
    ports = {
        name: np.array(sorted({item.port for item in known if item.protocol == name}), np.uint16)
        for name in _NUMBERS
    }
    rates = _rates(window, ports)
    found = [
        replace(
            item,
            name=item.name or SERVICES.get((item.protocol, item.port), ""),
            pps=float(rates[item.protocol][np.searchsorted(ports[item.protocol], item.port)]),
        )
        for item in known
        if item.protocol in rates
    ]
    if not listeners:
        found = [item for item in found if item.pps > 0]
    return tuple(sorted(found, key=lambda item: -item.pps)[:_MOST])


def _rates(window: Window, ports: _Ports) -> _Rates:
    """Accepted packets for this host by port, less those that the sockets dropped afterwards."""
    counters, accepted = window.counters, window.accepted
    if counters.seconds <= 0:
        return {name: np.zeros(len(ports[name])) for name in _NUMBERS}
    local = _local(accepted, window)
    scale = _scale(accepted.weight, counters.accepted_packets)
    rates = {name: packets * scale for name, packets in _by_port(accepted, local, ports).items()}
    dropped = window.dropped
    for drop in counters.drops:
        if drop.before_delivery or drop.code is None:
            continue
        same = dropped.reason == drop.code
        scale = _scale(dropped.weight[same], drop.packets)
        for name, packets in _by_port(dropped, same, ports).items():
            rates[name] -= packets * scale
    return {name: np.maximum(packets, 0) / counters.seconds for name, packets in rates.items()}


def _scale(weight: F64, packets: int | None) -> float:
    whole = float(weight.sum())
    return packets / whole if packets is not None and whole > 0 else 1.0


def _by_port(samples: PacketBatch, rows: Mask, ports: _Ports) -> _Rates:
    rows = rows & (samples.fragment != Fragment.LATER)
    found = {}
    for name, number in _NUMBERS.items():
        chosen = rows & (samples.protocol == number)
        wanted, dport, weight = ports[name], samples.dport[chosen], samples.weight[chosen]
        place = np.minimum(np.searchsorted(wanted, dport), max(len(wanted) - 1, 0))
        there = wanted[place] == dport if len(wanted) else np.zeros(len(dport), np.bool_)
        found[name] = np.bincount(place[there], weight[there], len(wanted)).astype(np.float64)
    return found


def _local(samples: PacketBatch, window: Window) -> Mask:
    """Tell packets to this host from those that it forwards, if its addresses are known."""
    if not window.own:
        return np.ones(len(samples), np.bool_)
    four = [prefix.value for prefix in window.own if prefix.family == 4]
    local: Mask = (samples.family == 4) & np.isin(samples.dst_lo, np.array(four, np.uint64))
    for prefix in window.own:
        if prefix.family == 6:
            high, low = np.uint64(prefix.value >> 64), np.uint64(prefix.value & (1 << 64) - 1)
            local |= (samples.family == 6) & (samples.dst_hi == high) & (samples.dst_lo == low)
    return local
