"""Why connections are held: attacks and what clients ordinarily do, as entries that compete.

An entry adds up what its features say, in log-odds; the shares of exp(sum) are the probabilities. `Says`
goes linearly from `at_low` at `low` (and below) to `at_high` at `high`; a feature that isn't known says
nothing. Thresholds come from the tools and programs named beside them, run in the lab against nginx and
Apache (tests/kernel/test_slow_attacks.py).
"""

from __future__ import annotations

from msgspec import Struct

from fwtop.analysis.held.behaviour import SILENT, STALLED, WAITING, Group

# What the features of a group mean.
FEATURES = {
    "connections": "connections to the port that do the same",
    "sources": "their addresses; of IPv6 their /64s",
    "per_source": "connections of the source of a connection, in the median",
    "of_port": "share of the port's connections",
    "times_usual": "times as many as there were before, at least 10",
    "known": "share from sources that the port has answered before",
    "answered": "share from sources that were answered in the last two to four minutes, on any port",
    "unanswered": "share that never got an answer: of a pool's connections earlier requests were answered",
    "pieces": "share that sent two or more pieces of 128 bytes or less on average, and got no answer "
    "(but that of the TLS handshake)",
    "alike": "share of the first pieces that have the same length within 8 bytes: one tool made them",
    "posts": "share of the sampled requests that announce a body (POST, PUT, PATCH), no header lines later",
    "forms": "share that send form data, not header lines: of those whose request wasn't seen",
    "foreign": "share whose sampled pieces are of neither HTTP nor TLS: logs, measurements, messages",
    "pace": "bytes a second that a connection sends, in the median",
    "fresh": "share that is younger than a minute",
    "window": "bytes that the peers accept, in the median",
    "taken": "segments of answers that were sent, in the median: an ordinary window takes ten at once",
    "seconds": "seconds without a request, an answer, or room in the peer's window, in the median",
    "queue": "share of the port's listen queue in use: the server accepts too slowly",
    "overflows": "handshakes a second that were lost to a full listen queue",
}


class Says(Struct, frozen=True):
    """What a feature says about a hypothesis, in log-odds."""

    feature: str
    low: float
    at_low: float
    high: float
    at_high: float

    def about(self, features: dict[str, float]) -> float:
        """Return the log-odds for these features, 0 where this one isn't known."""
        value = features.get(self.feature)
        if value is None:
            return 0.0
        part = min(max((value - self.low) / (self.high - self.low), 0.0), 1.0)
        return self.at_low + part * (self.at_high - self.at_low)


class Hypothesis(Struct, frozen=True):
    """One explanation of a group; `kind` is "" for what ordinary clients do."""

    behaviour: str
    name: str
    prior: float
    evidence: tuple[Says, ...]
    kind: str = ""
    sentence: str = ""  # of the connections, with {n}, {port}, {seconds}, {window}, {pace}
    nginx: str = ""  # settings that end such connections sooner
    apache: str = ""

    def score(self, group: Group) -> float:
        """Return its log-odds for a group."""
        return self.prior + sum(one.about(group.features) for one in self.evidence)


# A server that suffers: what holds its connections does harm, whatever it is.
_SUFFERS = (Says("queue", 0.2, 0.0, 0.9, 1.5), Says("overflows", 0.0, 0.0, 20.0, 1.5))
# Browsers open six connections to a host, most wait for nothing; tools need their 200 from few addresses.
_BY_FEW = Says("per_source", 1.5, -3.0, 3.5, 3.0)
_NEW = (Says("times_usual", 1.5, -4.0, 3.0, 1.0), Says("known", 0.3, 0.5, 0.9, -2.5))
_REQUESTS = (
    _BY_FEW,
    Says("connections", 30.0, -4.0, 120.0, 2.0),  # servers have 150 (Apache) to 768 (nginx) places
    Says("pieces", 0.0, -0.5, 0.2, 3.5),
    Says("unanswered", 0.3, -3.0, 0.9, 1.0),
    Says("alike", 0.3, -1.5, 0.9, 1.0),
    Says("pace", 500.0, 0.0, 4_000.0, -12.0),  # who sends so much is not slow
    Says("foreign", 0.1, 0.0, 0.6, -8.0),
    *_NEW,
    *_SUFFERS,
)

HYPOTHESES = (
    Hypothesis(
        WAITING, "Slow headers (Slowloris)", -1.0,
        (*_REQUESTS, Says("posts", 0.1, 1.0, 0.6, -4.0), Says("forms", 0.1, 0.0, 0.6, -4.0)),
        "slow_headers",
        "{n} connections to port {port} began a request and have not finished it for {seconds} s",
        "client_header_timeout 10s; reset_timedout_connection on;",
        "RequestReadTimeout header=10-20,MinRate=500 (mod_reqtimeout); MPM event",
    ),
    Hypothesis(
        WAITING, "Slow body (R-U-Dead-Yet)", -2.0,
        (*_REQUESTS, Says("posts", 0.1, -4.0, 0.6, 4.0), Says("forms", 0.1, -4.0, 0.6, 1.3)),
        "slow_body",
        "{n} connections to port {port} announced a body and have not sent it for {seconds} s",
        "client_body_timeout 10s; reset_timedout_connection on;",
        "RequestReadTimeout body=10-20,MinRate=500 (mod_reqtimeout); MPM event",
    ),
    Hypothesis(
        WAITING, "long polling", 1.0,  # one waiting request a page, often known before
        (Says("per_source", 1.5, 2.5, 3.5, -2.0), Says("pieces", 0.0, 0.5, 0.2, -3.0)),
    ),
    Hypothesis(
        WAITING, "requests of a proxy to a slow service", 0.0,  # keep-alive connections of few addresses
        (
            Says("per_source", 3.0, -2.0, 10.0, 1.0),
            Says("unanswered", 0.3, 3.0, 0.9, -2.0),
            Says("alike", 0.3, 2.0, 0.9, -1.0),
            Says("known", 0.3, -1.0, 0.9, 3.0),
            Says("pieces", 0.0, 0.5, 0.2, -3.0),
        ),
    ),
    Hypothesis(
        WAITING, "visitors of an overloaded server", 0.0,  # whole requests, of all lengths, six a browser
        (
            Says("alike", 0.3, 3.0, 0.9, -2.0),
            Says("per_source", 6.0, 1.0, 12.0, -3.0),
            Says("queue", 0.2, -1.0, 0.9, 1.5),
            Says("pieces", 0.0, 0.5, 0.2, -4.0),
        ),
    ),
    Hypothesis(
        WAITING, "one-way streams of clients", 0.0,  # WebSocket, MQTT: no answer to each message
        (
            Says("per_source", 1.5, 2.0, 3.5, -2.0),
            Says("unanswered", 0.3, 2.5, 0.9, -4.0),
            Says("seconds", 60.0, -1.0, 600.0, 9.0),  # servers end an unfinished request sooner
            Says("foreign", 0.1, 0.0, 0.6, 6.0),  # logs, measurements: nobody ever answers them
        ),
    ),
    Hypothesis(
        SILENT, "Idle connection flood", -1.0,
        (
            Says("per_source", 2.0, -3.0, 4.0, 2.5),  # a browser keeps one or two in reserve
            Says("connections", 40.0, -4.0, 120.0, 2.0),
            Says("fresh", 0.2, -3.0, 0.8, 1.0),
            Says("answered", 0.1, 3.5, 0.6, -1.0),  # who keeps one in reserve uses another
            *_NEW,
            *_SUFFERS,
        ),
        "idle_connections",
        "{n} connections to port {port} have sent nothing for {seconds} s since the handshake",
        "client_header_timeout 10s; listen … deferred;",
        "RequestReadTimeout header=10 (mod_reqtimeout); AcceptFilter http httpready",
    ),
    Hypothesis(
        SILENT, "connections in reserve", 1.0,  # Chrome and Firefox open them before they need them
        (Says("per_source", 2.0, 2.0, 4.0, -2.0), Says("answered", 0.1, -2.5, 0.6, 1.0)),
    ),
    Hypothesis(
        SILENT, "pool of a proxy or an application", 0.0,
        (
            Says("per_source", 3.0, -2.0, 10.0, 1.0),
            Says("fresh", 0.2, 3.0, 0.8, -2.0),
            Says("known", 0.3, -1.0, 0.9, 3.0),
            Says("queue", 0.2, 0.5, 0.9, -2.0),
        ),
    ),
    Hypothesis(
        STALLED, "Slow read", -1.0,
        (
            _BY_FEW,
            Says("connections", 20.0, -4.0, 80.0, 2.0),
            Says("window", 700.0, 1.0, 2_900.0, -0.5),
            Says("seconds", 1.0, -0.5, 5.0, 1.0),
            Says("taken", 12.0, 1.5, 40.0, -1.0),
            Says("of_port", 0.1, -0.5, 0.6, 1.0),
            *_NEW,
            *_SUFFERS,
        ),
        "slow_read",
        "{n} connections to port {port} leave their answer waiting: their windows take {window} bytes, "
        "and have kept data back for {seconds} s",
        "send_timeout 10s; reset_timedout_connection on;",
        "Timeout 10; MPM event; mod_qos QS_SrvMinDataRate",
    ),
    Hypothesis(
        STALLED, "players that pause and slow downloads", 1.0,  # one or two connections a client
        (
            Says("per_source", 1.5, 2.5, 3.5, -2.0),
            Says("taken", 12.0, -2.0, 40.0, 0.5),
            Says("known", 0.3, 0.0, 0.9, 1.5),
        ),
    ),
)  # fmt: skip
