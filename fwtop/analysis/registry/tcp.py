"""TCP: SYN, ACK, RST and FIN floods, reflections, scans, and the visitors and servers that look like them."""

from fwtop.analysis.engine.hypothesis import (
    CERTAIN,
    Hypothesis,
    Says,
    above,
    at_least,
    at_most,
    if_so,
    is_not,
    is_so,
)
from fwtop.analysis.groups.measures import (
    flow_singles,
    observed_live,
    peak,
    rate,
    same_port,
    share,
    sources,
    spoofed,
    threshold_ratio,
)
from fwtop.analysis.groups.probes import match_probes, scanned_ports, scanners
from fwtop.analysis.groups.strays import (
    beside_requests,
    connections_opened,
    data_length,
    flow_per_packet,
    flows_each,
    match_ack,
    match_fin,
    match_rst,
    normal_known,
    one_data_size,
    one_way_connections,
    one_way_data,
    one_way_data_connections,
    one_way_filler,
    one_way_framing,
    one_way_per_source,
    one_way_random,
    one_way_rate,
    one_way_same_size,
    openings_per_end,
    readable,
    refusals,
    sampled_capture,
    stray_acks,
    stray_fins,
    stray_resets,
    with_options,
)
from fwtop.analysis.groups.syns import (
    carried_data,
    constant_fields,
    constants,
    invalid_flags,
    match_flags,
    match_syn,
    rate_per_target,
    resets_included,
    slow_rate,
    target_port,
    unanswered_syns,
    visitor_crowd,
    with_resets,
    without_options,
)
from fwtop.analysis.groups.tcp_answers import (
    match_answers,
    match_syn_ack,
    more_than_syn_acks,
    other_answers,
    unasked_pages,
    unasked_syn_acks,
    with_other_answers,
)

_ENOUGH = at_least(threshold_ratio, 1)  # as large as the least that counts
_COOKIES = "SYN cookies, a limit of SYNs, or a signature of their constant fields"
_ACKS = "{with_data:percent} carry data; {same_port:percent} go to port {port:.0f}"
_PROBED = (
    "{who} probed {probed} ports or addresses and connected to none",
    "{scanners}, {rate:.1f} probes/s",
)
_OUTSIDE = "dropping TCP packets outside of connections (conntrack state INVALID)"
_ENDS = "but only {openings:count} SYNs or SYN-ACKs that could explain them"

_SCANS = (
    Hypothesis(
        "port scan", scanners, 2.6,
        kind="port_scan",
        title="Port scan by {who}",
        needs=(at_least(scanned_ports, 1),),  # the cut finds those that try as many as configured
        lead=_PROBED,
        match=match_probes,
        stopped_by="blocking the scanner",
    ),
    Hypothesis(
        "port scan at the rate of a flood", scanners, 4.6,  # masscan, zmap, nmap --min-rate
        kind="port_scan",
        title="Port scan by {who}, at the rate of a {flood}",
        needs=(_ENOUGH,),
        lead=_PROBED,
        evidence=(above(peak, 0, 0.5, "at {peak:count} packets/s, it is a flood as well"),),
        match=match_probes,
        stopped_by="blocking the scanner",
    ),
)  # fmt: skip

_HANDSHAKES = (
    Hypothesis(
        "TCP packets with invalid flags", invalid_flags, 2.9,
        kind="tcp_anomaly",
        title="TCP packets with invalid flags ({flags})",
        needs=(_ENOUGH,),
        lead="{amount:TCP packets with invalid flags}; {same_flags:percent} have {flags}",
        match=match_flags,
        stopped_by="dropping these flags: no connection needs them",
    ),
    Hypothesis(
        "SYN flood", unanswered_syns, 1.7,
        kind="syn_flood",
        needs=(_ENOUGH,),
        lead="{amount:SYNs} from {senders}; {completed_syns:percent} of all SYNs led to a connection",
        evidence=(
            if_so(without_options, 8.0,
                  "they carry no TCP options; the SYN of every operating system does (RFC 9293 3.7.1)"),
            above(constants, 0, 1.7),
            above(spoofed, 0.8, 1.7),
        ),
        details=(target_port, carried_data, resets_included, constant_fields),
        match=match_syn,
        rows=with_resets,
        stopped_by=_COOKIES,
    ),
    Hypothesis(
        "visitors whose connections are completed", unanswered_syns, 7.5,  # a flash crowd
        needs=(is_so(visitor_crowd), is_not(without_options)),
    ),
    Hypothesis(
        "attempts of a few hosts at many closed ports", unanswered_syns, CERTAIN,
        needs=(at_most(sources, 3), at_most(same_port, 0.1), at_most(slow_rate, 299)),
    ),
    Hypothesis(
        "background scans, some a minute and address", unanswered_syns, CERTAIN,  # Wustrow et al. 2010
        needs=(
            is_not(observed_live), at_most(same_port, 0.5), at_most(spoofed, 0.9),
            at_most(rate_per_target, 1),
        ),
    ),
    Hypothesis(
        "background scans of one address", unanswered_syns, CERTAIN,
        needs=(is_not(observed_live), at_most(same_port, 0.5), at_most(spoofed, 0.9), at_most(rate, 20)),
    ),
    Hypothesis(
        "background scans beside other traffic", unanswered_syns, CERTAIN,
        needs=(
            is_not(observed_live), at_most(same_port, 0.5), at_most(spoofed, 0.9), at_most(share, 0.5),
            at_most(rate, 100),
        ),
    ),
    Hypothesis(
        "SYN-ACK reflection", unasked_syn_acks, 5.0,
        kind="syn_ack_reflection",
        needs=(_ENOUGH, at_least(sources, 8)),  # fewer: backscatter of floods on other hosts
        lead=(
            "{amount:SYN-ACKs} from {reflectors}, for connections that this host never opened",
            "{same_sport:percent} come from port {sport:.0f}, to {ports:count} local ports",
        ),
        details=(other_answers,),
        match=match_syn_ack,
        rows=with_other_answers,
        stopped_by="dropping SYN-ACKs outside of connections",
    ),
    Hypothesis(
        "answers to connections that this host opened", unasked_syn_acks, CERTAIN,
        needs=(is_so(more_than_syn_acks),),
    ),
    Hypothesis(
        "TCP middlebox reflection", unasked_pages, 5.0,  # Bock et al. 2021
        kind="middlebox_amplification",
        needs=(_ENOUGH,),
        lead=(
            "{pages} web pages from {boxes} for requests that this host never sent, without a handshake; "
            "the first begins {line}",
            "with their RSTs {amount:packets}, mean length {mean_length:.0f} bytes; "
            "censoring middleboxes answer like this (Bock et al. 2021)",
        ),
        match=match_answers,
        stopped_by="dropping TCP packets outside of connections",
    ),
)  # fmt: skip

_STRAYS = (
    Hypothesis(
        "ACK flood", stray_acks, -1.1,
        kind="ack_flood",
        title="{flood}",
        needs=(_ENOUGH, at_least(flow_singles, 0.5), at_most(connections_opened, 1)),
        lead=(
            "{amount:ACK packets} from {senders} belong to no connection: {flow_singles:percent} are the "
            "only packet of their flow",
            _ACKS,
        ),
        evidence=(
            above(constants, 0, 2.5),
            above(one_data_size, 0.8, 2.5),
            above(spoofed, 0.5, 2.5),
            if_so(flow_per_packet, 2.5),
            if_so(normal_known, 2.5),
            if_so(sampled_capture, -2.6),  # there, every packet is alone in its flow
            Says(connections_opened, 0.1, 0.5, 0.7, -2.5),
            Says(flows_each, 20, 0.0, 200, 2.0, "each source sends them in {flows_each:count} flows or more"),
            Says(readable, 0.3, 0.0, 0.8, -4.0),
            Says(with_options, 0.3, 0.0, 0.9, -6.0),
            Says(beside_requests, 0.5, 0.0, 0.9, -6.0),
        ),
        details=(constant_fields, data_length),
        match=match_ack,
        stopped_by=_OUTSIDE,
    ),
    Hypothesis(
        "ACK flood that repeats numbers", stray_acks, 2.4,
        kind="ack_flood",
        title="{flood}",
        needs=(_ENOUGH, at_most(flow_singles, 0.5)),
        lead=("{amount:ACK packets} whose sequence numbers don't advance as in a connection", _ACKS),
        evidence=(
            above(constants, 0, 2.5),
            above(one_data_size, 0.8, 2.5),
            above(spoofed, 0.8, 2.5),
            if_so(sampled_capture, -4.5),
        ),
        details=(constant_fields, data_length),
        match=match_ack,
        stopped_by=_OUTSIDE,
    ),
    Hypothesis(
        "ACK flood of forged sources", stray_acks, 2.4,
        kind="ack_flood",
        title="{flood}",
        needs=(_ENOUGH, at_least(spoofed, 0.8)),
        lead=("{amount:ACK packets} whose sequence numbers don't advance as in a connection", _ACKS),
        details=(constant_fields, data_length),
        match=match_ack,
        stopped_by=_OUTSIDE,
    ),
    Hypothesis(
        "PSH-ACK flood on open connections (STOMP)", one_way_data_connections, 0.0,  # Mirai attack_tcp_stomp
        kind="ack_flood",
        needs=(_ENOUGH,),
        lead="{amount:packets} on {one_way_connections:count} connections from {senders}, none of which "
        "acknowledges data from this host",
        evidence=(
            Says(one_way_connections, 1, -1.5, 5, 0.0),
            Says(one_way_same_size, 0.5, 0.0, 0.9, 2.0),
            if_so(one_way_random, 1.5, "the data is random"),
            Says(one_way_filler, 0.2, 0.0, 0.9, 3.0, "it repeats a byte or a word"),
            Says(one_way_framing, 0.05, 0.5, 0.7, -2.5),
            Says(one_way_per_source, 1, -1.0, 4, 1.0,
                 "each source has {one_way_per_source:.0f} such connections"),
            Says(one_way_rate, 10, -1.0, 50, 1.0, "{one_way_rate:count} packets/s on each of them"),
        ),
        details=(one_way_data,),
        match=match_ack,
        stopped_by="blocking the sources, or a signature of the data",
    ),
    Hypothesis(
        "one-way streams of clients", one_way_data_connections, 0.0,  # logs, measurements, market data
        evidence=(
            if_so(one_way_random, -2.5),
            Says(one_way_per_source, 1, 2.0, 4, -1.0),
            Says(one_way_rate, 10, 1.0, 100, 0.0),
            Says(one_way_filler, 0.2, 0.0, 0.9, -3.0),
            Says(one_way_framing, 0.05, 0.0, 0.7, 2.0),
        ),
    ),
    Hypothesis(
        "RST flood", stray_resets, 2.0,
        kind="rst_flood",
        needs=(_ENOUGH, at_least(share, 0.02)),
        lead=("{amount:RST packets} from {senders}, " + _ENDS, "{same_port:percent} go to port {port:.0f}"),
        details=(constant_fields,),
        match=match_rst,
        stopped_by=_OUTSIDE,
    ),
    Hypothesis(
        "refusals of a scan that this host makes", stray_resets, 0.0,
        needs=(at_least(refusals, 0.9), at_least(same_port, 0.9)),
        evidence=(Says(rate, 2_000, 5.0, 20_000, -2.0),),
    ),
    Hypothesis(
        "FIN flood", stray_fins, 2.0,
        kind="fin_flood",
        needs=(_ENOUGH, at_least(share, 0.02)),
        lead=("{amount:FIN packets} from {senders}, " + _ENDS, "{same_port:percent} go to port {port:.0f}"),
        details=(constant_fields,),
        match=match_fin,
        stopped_by=_OUTSIDE,
    ),
    *(
        explanation
        for cut in (stray_resets, stray_fins)
        for explanation in (
            Hypothesis("ends of as many connections", cut, CERTAIN, needs=(at_least(openings_per_end, 1),)),
            Hypothesis(
                "ends of connections of a few hosts", cut, CERTAIN,
                needs=(at_most(sources, 2), at_most(rate, 299)),
            ),
        )
    ),
)  # fmt: skip

TCP_ENTRIES = (*_SCANS, *_HANDSHAKES, *_STRAYS)
