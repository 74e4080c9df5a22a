"""UDP: floods, answers that nobody asked for, and the calls, games and tunnels that look like them."""

from fwtop.analysis.engine.hypothesis import (
    CERTAIN,
    Hypothesis,
    Needs,
    Says,
    above,
    at_least,
    at_most,
    if_so,
    is_not,
    is_so,
)
from fwtop.analysis.groups.answers import (
    answered,
    answers_by_content,
    answers_by_port,
    answers_of_unknown_service,
    between_peers,
    clock_answers,
    contents,
    distinct_request_ids,
    dns_answers,
    match_answers,
    match_requests,
    more_than_requested,
    on_link,
    one_to_one,
    only_the_port,
    payload_variety,
    polled_devices,
    reflected_requests,
    requests_instead,
    resolver_like,
    same_port_both_ends,
    servers,
    sources_forged,
    to_reserved_port,
    torrent_questions,
    unevenness,
    valid_answers,
    web_port,
    without_other_names,
    worded_alike,
)
from fwtop.analysis.groups.datagrams import (
    above_normal,
    all_zeros,
    answered_peers,
    asked,
    at_clients_pace,
    beginning,
    changing_ports,
    changing_ports_fast,
    common_beginning,
    common_source_port,
    datagrams,
    empty,
    few_servers,
    identical,
    known_peers,
    later_fragments_per_packet,
    like_conversations,
    match_datagrams,
    match_udp_fragments,
    normal_rate,
    not_reports,
    numbered,
    one_length,
    only_quic_openings,
    questions,
    quic_headers,
    quic_packets,
    random_once,
    random_payload,
    random_ports,
    reflector_answers,
    repeated_requests_per_source,
    replayed,
    requests_per_source,
    stream_rate,
    to_collector,
    udp_size,
    video,
    with_tails,
    without_conversations,
)
from fwtop.analysis.groups.measures import (
    mean_length,
    peak,
    per_source,
    ports,
    same_length,
    share,
    sources,
    spoofed,
    threshold_ratio,
)

_ENOUGH = at_least(threshold_ratio, 1)  # as large as the least that counts
_REFLECTED = "dropping what comes from the service's port, or a signature of the answers"

# Proven answers of a name server that are ordinary belong to this host's resolver, whatever shows it.
_RESOLVED = (is_so(dns_answers), _ENOUGH, at_least(valid_answers, 0.5))
_ORDINARY_ANSWERS: tuple[tuple[str, tuple[Needs, ...], tuple[Needs, ...]], ...] = (
    ("requests, or peers that use one port", (is_so(requests_instead),), _RESOLVED),
    ("BitTorrent peers, who ask and answer", (at_least(torrent_questions, 0.05),), _RESOLVED),
    ("answers of polled devices", (is_so(polled_devices),), (_ENOUGH, at_least(valid_answers, 0.5))),
    (
        "answers of the few servers that a host uses",
        (at_most(sources, 3), is_not(more_than_requested)),
        _RESOLVED,
    ),
    (
        "small answers of few servers",
        (at_least(sources, 4), at_most(sources, 7), at_most(mean_length, 399)),
        _RESOLVED,
    ),
    ("answers to a resolver", (is_so(resolver_like),), _RESOLVED),
    (
        "answers to this host's clocks and calls",
        (at_least(sources, 4), is_so(clock_answers), at_most(share, 0.2)),
        _RESOLVED,
    ),
    (
        "tunnels and calls between peers",
        (at_least(sources, 4), is_so(between_peers), at_most(valid_answers, 0.999)),
        _RESOLVED,
    ),
)

_ANSWERS = (
    Hypothesis(
        "amplification, proven by contents", answers_by_port, 3.5,
        kind="{service}_amplification",
        title="{service_title} amplification",
        needs=(_ENOUGH, at_least(valid_answers, 0.5)),
        details=(servers, contents),
        match=match_answers,
        rows=without_other_names,
        stopped_by=_REFLECTED,
    ),
    Hypothesis(
        "amplification, by its port", answers_by_port, 1.4,  # too few bytes were captured to tell contents
        kind="{service}_amplification",
        title="{service_title} amplification",
        needs=(_ENOUGH, at_most(valid_answers, -1)),
        details=(servers, contents),
        match=match_answers,
        rows=without_other_names,
        stopped_by=_REFLECTED,
    ),
    Hypothesis(
        "amplification with unknown contents", answers_by_port, 0.85,
        kind="{service}_amplification",
        title="{service_title} amplification",
        needs=(_ENOUGH, at_least(valid_answers, 0), at_most(valid_answers, 0.499), is_not(only_the_port)),
        details=(servers, contents),
        match=match_answers,
        rows=without_other_names,
        stopped_by=_REFLECTED,
    ),
    Hypothesis(
        "downloads from web servers", answers_by_port, CERTAIN,  # they begin with such packets, too
        needs=(is_so(web_port), at_most(valid_answers, 0.799)),
    ),
    Hypothesis(
        "neighbours that answer a search", answers_by_port, CERTAIN,
        needs=(_ENOUGH, at_least(on_link, 0.95), at_most(peak, 999)),
        settles=(),
    ),
    *(
        Hypothesis(name, answers_by_port, CERTAIN, needs=(is_not(to_reserved_port), *needs), settles=settles)
        for name, needs, settles in _ORDINARY_ANSWERS
    ),
    Hypothesis(
        "answers of devices, one to each request", answers_by_port, -1.0,  # many at once, as fast as they can
        needs=(is_not(to_reserved_port), at_least(distinct_request_ids, 0.5)),
        evidence=(
            Says(distinct_request_ids, 0.6, 0.0, 0.95, 6.0),
            Says(unevenness, 0.5, 3.0, 2.0, -3.0),
            Says(ports, 20, 1.0, 200, -3.0),
        ),
        settles=(_ENOUGH, at_least(valid_answers, 0.5)),
    ),
    Hypothesis(
        "amplification from any port, proven by contents", answers_by_content, 2.4,
        kind="{service}_amplification",
        title="{service_title} amplification",
        needs=(_ENOUGH, at_least(sources, 8)),
        details=(servers, contents),
        match=match_answers,
        stopped_by=_REFLECTED,
    ),
    Hypothesis("conversations of few peers", answers_by_content, CERTAIN, needs=(is_so(one_to_one),)),
    Hypothesis("answers of polled devices", answers_by_content, CERTAIN, needs=(is_so(polled_devices),)),
    Hypothesis(
        "BitTorrent peers, who ask and answer", answers_by_content, CERTAIN,
        needs=(at_least(torrent_questions, 0.05),),
    ),
    Hypothesis(
        "neighbours that answer a search", answers_by_content, CERTAIN,
        needs=(_ENOUGH, at_least(on_link, 0.95), at_most(peak, 999)),
        settles=(),
    ),
    Hypothesis(
        "this host as a reflector", reflected_requests, 1.8,
        kind="{service}_amplification",
        title="{service_title} amplification through this host",
        # scanners ask once, clients now and then
        needs=(_ENOUGH, at_least(per_source, 10), at_least(valid_answers, 0.5)),
        lead="{amount:{service_title} requests} in the name of {senders}, {per_source:count}/s each: "
        "this host is being used as a reflector",
        details=(answered,),
        match=match_requests,
        stopped_by="closing the service to the world; until then, a limit for each source",
    ),
)  # fmt: skip

_FLOOD = (
    if_so(random_ports, 2.0, "destination ports are random ({ports:count} seen)"),
    above(same_length, 0.9, 1.0),
    if_so(changing_ports, 1.75, "the ports change with nearly every packet"),
    above(common_source_port, 0.95, 1.5, "all sources use one source port; those of clients differ"),
    above(common_beginning, 0.95, 1.0),
    if_so(empty, 1.5, "they carry no payload"),
    if_so(all_zeros, 2.5, "the payload is all zeros"),
    if_so(identical, 2.0, "all payloads are identical"),
    if_so(random_payload, 1.0, "the payload is random"),
    if_so(random_once, 0.75, "{senders} send it once per port; no protocol starts like that"),
    if_so(quic_packets, -2.0),
    Says(replayed, 0.5, 0.0, 0.7, 4.0, "{replayed:percent} repeat random bytes of their flow"),
    Says(only_quic_openings, 0.5, 0.0, 0.9, 3.0, "no connection goes on after its first packet"),
    above(spoofed, 0.7, 2.0),
    above(share, 0.6, 1.0),
    above(per_source, 1_000, 1.5, "mean {per_source:count} packets/s per source"),
    above(requests_per_source, 20, 2.0, "each source asks {per_source:count} times per second"),
    above(repeated_requests_per_source, 0, 1.0,
          "each source asks up to {repeated_requests_per_source:.1f} times per second without waiting for "
          "the answer"),
    if_so(not_reports, 3.0, "they go to a collector's port, and no collector can read them"),
    if_so(stream_rate, -3.0),
    if_so(changing_ports_fast, 1.5),
    Says(above_normal, 0.0, 0.0, 10.0, 20.0),
)  # fmt: skip
_UDP_LEAD = "{amount:UDP packets} {where} from {senders}, mean length {mean_length:.0f} bytes"

_DATAGRAMS = (
    Hypothesis(
        "UDP flood", datagrams, -1.4,
        kind="udp_flood",
        needs=(_ENOUGH,),
        lead=_UDP_LEAD,
        evidence=(*_FLOOD, above(later_fragments_per_packet, 2.9, -2.0)),  # from 3 on it is the next one
        details=(asked, quic_headers, one_length, beginning, normal_rate),
        match=match_datagrams,
        rows=without_conversations,
        joins=True,
        stopped_by="dropping the ports that this host doesn't serve; a limit for each source, or a signature",
    ),
    Hypothesis(
        "UDP fragment flood", datagrams, -1.0,
        kind="fragment_flood",
        needs=(_ENOUGH, at_least(later_fragments_per_packet, 3)),
        lead="{odd}",
        evidence=_FLOOD,
        details=(udp_size, asked, one_length, beginning, normal_rate),
        match=match_udp_fragments,
        rows=with_tails,
        stopped_by="dropping fragments",
    ),
    Hypothesis(
        "amplification by few reflectors", datagrams, -0.5,
        kind="{service}_amplification",
        title="{service_title} amplification",
        needs=(_ENOUGH, is_so(reflector_answers)),
        evidence=_FLOOD,
        details=(servers, contents),
        match=match_answers,
        stopped_by=_REFLECTED,
    ),
    Hypothesis(
        "requests as clients send them", datagrams, 4.0,
        needs=(_ENOUGH, at_least(questions, 0.5), is_so(at_clients_pace)),
        evidence=(
            Says(only_quic_openings, 0.5, 0.0, 0.9, -6.0),
            if_so(identical, 1.5),  # whoever asks a service that has one question asks the same
        ),
    ),
    Hypothesis(
        "calls, games, tunnels, downloads", datagrams, 4.0,
        needs=(_ENOUGH, is_so(like_conversations)),
        evidence=(
            if_so(not_reports, -5.0),
            Says(replayed, 0.5, 0.0, 0.7, -6.0),
            above(spoofed, 0.7, -3.0),  # what answers a forged address reaches somebody else
        ),
    ),
    Hypothesis("peers that this host answers", datagrams, 4.0, needs=(_ENOUGH, is_so(answered_peers))),
    Hypothesis("answers of few servers", datagrams, 4.0, needs=(_ENOUGH, is_so(few_servers))),
    Hypothesis(
        "logs, metrics and flow records", datagrams, 4.0,
        needs=(_ENOUGH, is_so(to_collector)),
        evidence=(
            if_so(changing_ports, -2.0),  # programs that report keep their socket
            above(spoofed, 0.7, -3.0),  # and their address
        ),
    ),
    Hypothesis("a video stream (MPEG-TS)", datagrams, 4.0, needs=(_ENOUGH, is_so(video))),
    Hypothesis(
        "a stream of known peers, however fast", datagrams, -3.0,
        needs=(_ENOUGH, at_least(known_peers, 0.95), is_so(numbered)),
        settles=(),
    ),
    Hypothesis(
        "a stream at the rate of a call or a tunnel", datagrams, -3.0,  # any tool can count
        needs=(_ENOUGH, at_most(per_source, 4_999), is_so(numbered)),
        settles=(),
    ),
    Hypothesis(
        "amplification by a service that no table knows", answers_of_unknown_service, 5.0,
        kind="udp_amplification",
        title="{service_title} amplification",
        needs=(
            _ENOUGH, at_least(sources, 20), at_least(mean_length, 300),
            at_least(payload_variety, 0.02), at_most(same_length, 0.9),
        ),
        details=(servers,),
        match=match_answers,
        stopped_by=_REFLECTED,
    ),
    Hypothesis(
        "conversations of few peers", answers_of_unknown_service, CERTAIN, needs=(is_so(one_to_one),)
    ),
    Hypothesis(
        "peers of a symmetric protocol", answers_of_unknown_service, CERTAIN,
        needs=(is_so(same_port_both_ends),),
    ),
    Hypothesis(
        # no amplification, that is: whether they are a UDP flood is asked of their destination ports
        "forged packets: no server sends them", answers_of_unknown_service, CERTAIN,
        needs=(at_least(sources_forged, 0.5), is_not(worded_alike)),
    ),
)  # fmt: skip

UDP_ENTRIES = (*_ANSWERS, *_DATAGRAMS)
