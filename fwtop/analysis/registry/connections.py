"""Connections that are opened and hardly used: silent, pretended, or held by requests that never end."""

from fwtop.analysis.engine.hypothesis import Hypothesis, Says, at_least
from fwtop.analysis.groups.idle import (
    acknowledged,
    match_opened,
    no_data_share,
    opened,
    opened_each,
    opened_rate,
    silent,
    silent_connections,
    silent_each,
    silent_rate,
    silent_share,
    slow,
    slow_requests,
    slow_share,
    sources_without_data,
)
from fwtop.analysis.groups.measures import spoofed, threshold_ratio, to_port

_ENOUGH = at_least(threshold_ratio, 1)  # as large as the least that counts

CONNECTION_ENTRIES = (
    Hypothesis(
        "TCP connection flood", silent_connections, 1.8,  # RFC 4987 1
        kind="syn_flood",
        needs=(
            _ENOUGH, at_least(silent, 100), at_least(silent_rate, 20), at_least(silent_each, 2),
            at_least(silent_share, 0.5),
        ),
        evidence=(Says(silent_each, 2, -2.0, 3, 0.0), Says(silent_share, 0.5, -2.5, 0.7, 0.0)),
        lead=(
            "{silent:count} connections of {senders} to port {silent_port:.0f} ({silent_rate:count}/s) "
            "finished the handshake and sent no data",
            "{silent_share:percent} of the connections to that port do so",
        ),
        match=match_opened,
        stopped_by="a limit of connections for each source",
    ),
    Hypothesis(
        "TCP connection flood by sources that send no data", sources_without_data, 0.0,
        kind="syn_flood",
        title="TCP connection flood",
        needs=(
            _ENOUGH, at_least(opened, 100), at_least(opened_rate, 20), at_least(opened_each, 2),
            at_least(acknowledged, 0.5),
        ),
        lead=(
            "{opened:count} connections ({opened_rate:count}/s) to port {silent_port:.0f} of {senders}, from "
            "whom no data comes",
        ),
        evidence=(
            Says(no_data_share, 0.4, -3.0, 0.9, 2.5),
            Says(opened_each, 2, -1.0, 5, 0.5),
        ),
        match=match_opened,
        stopped_by="a limit of connections for each source",
    ),
    Hypothesis(
        "fake TCP sessions of forged sources", sources_without_data, 0.0,
        kind="syn_flood",
        title="Flood of fake TCP sessions",
        needs=(
            _ENOUGH, at_least(opened, 100), at_least(opened_rate, 20), at_least(acknowledged, 0.5),
            at_least(spoofed, 0.9),
        ),
        lead=(
            "{opened:count} connections ({opened_rate:count}/s) to port {silent_port:.0f} of {senders}, from "
            "whom no data comes",
            "the sources are forged: their acknowledgements answer nothing that this host said",
        ),
        evidence=(Says(no_data_share, 0.4, -3.0, 0.9, 2.5),),
        match=to_port,
        stopped_by="a SYN proxy: forged sources never see its cookies",
    ),
    Hypothesis(
        "slow HTTP attack", slow_requests, 2.2,  # Slowloris (2009), R.U.D.Y. (2010)
        kind="http_flood",
        title="Slow HTTP attack",
        needs=(at_least(slow, 50), at_least(slow_share, 0.2)),
        lead=(
            "{slow:count} connections of {senders} started requests and finished none: they send "
            "{piece:.0f} bytes every {every_seconds:.0f} s",
            "{slow_share:percent} of the connections with requests are held open this way (Slowloris, "
            "R.U.D.Y.): only {amount:packets}, but each connection occupies a worker",
        ),
        match=to_port,
        stopped_by="a limit of connections for each source; time limits of the server",
    ),
)  # fmt: skip
