"""Groups of requests inside TLS: small records without end on few connections, as HTTP/2 sends them.

What is asked can't be read. What shows: how many records a connection sends, whether they have one size, as
an indexed request has (RFC 7541), whether this host answers them, and what is usual. Sources: RFC 9113 5.1.2,
CVE-2023-44487 (rapid reset); h2load and a rapid reset by hand against nginx 1.22.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from fwtop.analysis.context import AnalysisContext
from fwtop.analysis.engine.group import Group, Least, Proof, cut, feature
from fwtop.analysis.groups.requests import fast_rows
from fwtop.analysis.window.counting import among, distinct_values
from fwtop.analysis.window.traffic import Rows, payload
from fwtop.model.traffic.packets import Mask, PacketBatch

_APPLICATION_DATA = 23
_HTTPS = (443, 8443)  # where HTTP/2 is spoken inside TLS; databases have records as many, and as alike
_SMALL = 256  # bytes: a request, a reset, a window update
_SIZES = 2  # most common ones: requests, and window updates or resets
_FEWEST = 30  # records


def small_records(packets: PacketBatch, rows: Rows) -> Mask:
    """Mark the rows whose payload starts with a small record of TLS application data."""
    head, length = payload(packets, rows, 5)
    size = (head[:, 3].astype(np.int64) << 8) | head[:, 4]
    data = (head[:, 0] == _APPLICATION_DATA) & (head[:, 1] == 3) & (length == 5)
    return np.asarray(data & (size > 0) & (size <= _SMALL))


@cut(Proof.VOLUME)
def requests_inside_tls(context: AnalysisContext) -> Iterator[Group]:
    """Small TLS records to an HTTPS port of sources that send more of them than browsers do."""
    packets, config = context.traffic.packets, context.config
    pool = context.tcp.ack & context.unclaimed & ~context.benign & (packets.payload_length > 0)
    rows = context.traffic.rows(pool & among(packets.dport, _HTTPS))
    if len(rows) < config.min_samples:
        return
    rows = rows[small_records(packets, rows)]
    if len(rows) < _FEWEST:
        return
    features = context.features(rows)
    fast = fast_rows(features, config.request_rate_per_source)
    if not fast.any():
        return
    some = context.features(rows[fast])
    flows = len(distinct_values(context.traffic.flow_id[some.rows]))
    counts = np.sort(np.bincount(packets.payload_length[some.rows].astype(np.intp)))[::-1]
    notes = {"flows": flows, "one_size": float(counts[:_SIZES].sum() / max(1, some.n))}
    yield Group(context, some, Least("flood_pps", small_records, shaped=True), notes, spoof_prior=-4.0)


@feature("records a second")
def records_each(group: Group) -> float:
    """Records a second of each connection: a browser sends dozens when it opens a page, then waits."""
    return group.packets.pps / max(1.0, float(group.notes["flows"]))


@feature("share")
def records_alike(group: Group) -> float:
    """Part of the records with one of the two most common sizes: the same request again and again."""
    return float(group.notes["one_size"])


@feature("decades")
def records_above_normal(group: Group) -> float:
    """Rate of such records against the baseline's, as a decimal logarithm; 0 where nothing is known."""
    usual = _usual(group)
    if usual is None:
        return 0.0
    return float(np.log10(max(1.0, group.packets.pps / max(usual, group.context.config.flood_pps))))


@feature("yes or no")
def records_as_usual(group: Group) -> float:
    """Whether the baseline holds about as many such records."""
    usual = _usual(group)
    return usual is not None and bool(group.packets.pps <= group.context.config.baseline_factor * usual)


def _usual(group: Group) -> float | None:
    baseline = group.context.baseline
    if not (baseline.ready and group.context.traffic.live):
        return None
    return baseline.rate_of_payloads(small_records)
