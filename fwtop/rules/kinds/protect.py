"""Let only access lists open connections to a port: raw PREROUTING, in order of priority.

A rule has the lines of all levels; its enable sets say which of them act, so that a change of level fills one
and empties another, however long the access lists are: `on` is the dead man's switch, `shut` drops whoever is
new, `pass` lets everybody in. New is a SYN, and of UDP whoever the host did not talk to in the last minutes:
raw comes before connection tracking, so what is dropped here costs no entry there, and services without
tracking can be protected, too. The addresses and ports of UDP conversations are in a set that the service's
answers fill; conversations that are older than the rule come from connection tracking.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fwtop.model.addresses.address import of_family
from fwtop.model.errors import FwtopError
from fwtop.model.rule import Kind, Level, Match, Protection, Rule
from fwtop.model.text import safe_text
from fwtop.model.traffic.protocols import TCP, UDP, protocol_name
from fwtop.rules.fields import family_words
from fwtop.rules.kind import OUTPUT, ChainLine, KernelObjects, Layer, Machine, RuleKind, SetSpec, Surroundings
from fwtop.rules.kinds.common import DROP
from fwtop.rules.xtables import field_args, halves, list_set_name, set_name

_RETURN = ("-j", "RETURN")
_SEEDS = 65_536
ON, SHUT, PASS, PEERS = "on", "shut", "pass", "peers"
_FILLED = {Level.OPEN: (ON, PASS), Level.PROTECTED: (ON,), Level.CLOSED: (ON, SHUT)}


def build(rule: Rule, around: Surroundings) -> KernelObjects:
    """Return the sets and lines, given what the access lists hold and which rules decide before this one.

    Raises FwtopError (code 2) on other conditions than a port of TCP or UDP.
    """
    match, protection = rule.match, rule.protection
    plain = Match(family=match.family, protocol=match.protocol, dport=match.dport)
    if protection is None or match.protocol not in (TCP, UDP) or match.dport is None or match != plain:
        raise FwtopError("protect takes a port of TCP or UDP and a family; nothing was installed", 2)
    sets: list[SetSpec] = []
    lines: list[ChainLine] = []
    for family in match.families:
        sets += enable_sets(rule, family)
        for name in protection.lists:
            rows = of_family(around.lists[name], family, ())
            sets.append(SetSpec(list_set_name(name, family), family, rows, timed=False, shared=True))
        if match.protocol == UDP and not protection.strict:
            sets.append(_learned(around.machine, rule.id, family, match.dport))
            lines += _learning(rule, family, around.higher)
        levels = _counted_levels if rule.counts_only else _levels
        lines += [
            ChainLine(family, (*field_args(match, family), *asks), target, behind=around.higher)
            for asks, target in levels(rule, family, protection)
        ]
    return KernelObjects(tuple(sets), tuple(lines))


def enable_sets(rule: Rule, family: int) -> tuple[SetSpec, ...]:
    """Return the sets that say which level acts."""
    filled = _FILLED[rule.protection.level] if rule.protection is not None else ()
    return tuple(
        SetSpec(set_name(rule.id, family, role), family, halves(family) if role in filled else ())
        for role in (ON, SHUT, PASS)
    )


def _levels(
    rule: Rule, family: int, protection: Protection
) -> Iterator[tuple[tuple[str, ...], tuple[str, ...]]]:
    """Yield the matches and targets of all levels, in order; `closed` comes first."""
    new = _new(rule, protection)
    is_on = _in(set_name(rule.id, family, ON))
    yield (*new, *_in(set_name(rule.id, family, SHUT))), DROP
    yield _in(set_name(rule.id, family, PASS)), _RETURN
    for name in protection.lists:
        yield (*new, *_in(list_set_name(name, family)), *is_on), _RETURN
    yield (*new, *is_on), DROP


def _counted_levels(
    rule: Rule, family: int, protection: Protection
) -> Iterator[tuple[tuple[str, ...], tuple[str, ...]]]:
    """Yield the same without letting anybody pass what other rules decide: who would be, is no match."""
    talks = rule.match.protocol == UDP and not protection.strict
    known = _not_in(set_name(rule.id, family, PEERS), "src,src") if talks else ()
    new = (*_new(rule, protection), *known)
    yield (*new, *_in(set_name(rule.id, family, SHUT))), ()
    spared = [set_name(rule.id, family, role) for role in (SHUT, PASS)]
    spared += [list_set_name(name, family) for name in protection.lists]
    yield (
        (
            *new,
            *(word for name in spared for word in _not_in(name)),
            *_in(set_name(rule.id, family, ON)),
        ),
        (),
    )


def _new(rule: Rule, protection: Protection) -> tuple[str, ...]:
    return ("--syn",) if rule.match.protocol == TCP and not protection.strict else ()


def _learned(machine: Machine, rule_id: str, family: int, port: int) -> SetSpec:
    def seeds() -> Sequence[str]:
        return [f"{address},udp:{peer}" for address, peer in machine.udp_peers(family, port, _SEEDS)]

    return SetSpec(set_name(rule_id, family, PEERS), family, (), seeds=seeds)


def _learning(rule: Rule, family: int, higher: frozenset[str]) -> Iterator[ChainLine]:
    """Yield the lines that keep conversations known, and let them pass."""
    peers = set_name(rule.id, family, PEERS)
    is_on, known = _in(set_name(rule.id, family, ON)), _in(peers, "src,src")
    to_port, port = field_args(rule.match, family), str(rule.match.dport)
    renew = ("-j", "SET", "--add-set", peers, "src,src", "--exist")
    yield ChainLine(family, (*to_port, *known, *is_on), renew, behind=higher)
    if not rule.counts_only:
        yield ChainLine(family, (*to_port, *known, *is_on), _RETURN, behind=higher)
    answers = ("-p", str(UDP), "--sport", port, *_in(set_name(rule.id, family, ON), "dst"))
    yield ChainLine(family, answers, ("-j", "SET", "--add-set", peers, "dst,dst", "--exist"), OUTPUT)


def _in(name: str, side: str = "src") -> tuple[str, ...]:
    return ("-m", "set", "--match-set", name, side)


def _not_in(name: str, side: str = "src") -> tuple[str, ...]:
    return ("-m", "set", "!", "--match-set", name, side)


def protection_text(protection: Protection) -> str:
    """Describe a protected port's level and access lists: protected, open to lists office and vpn."""
    words = [protection.level.value]
    if protection.level is Level.PROTECTED:
        noun = "list" if len(protection.lists) == 1 else "lists"
        words.append(f"open to {noun} {' and '.join(map(safe_text, protection.lists))}")
    words += ["strict"] if protection.strict else []
    words += [f"priority {protection.priority}"] if protection.priority else []
    return ", ".join(words)


def _phrase(rule: Rule, what: str) -> str:
    return f"{protection_text(rule.protection)}: {what}" if rule.protection is not None else what


def _words(rule: Rule) -> list[str] | None:
    match, protection = rule.match, rule.protection
    if protection is None or match.dport is None or match.protocol is None:
        return None
    words = ["protect", f"{match.dport}/{protocol_name(match.protocol)}"]
    words += family_words(match)
    words += ["--level", protection.level.value]
    words += ["--acl", *protection.lists] if protection.lists else []
    return [*words, "--priority", str(protection.priority), *(["--strict"] * protection.strict)]


KIND = RuleKind(
    Kind.PROTECT, Layer.RAW, build, _words,
    own={"protection": "a protected port's"}, phrase=_phrase, verbs=("protect",),
    fixed="'fwtop protect' sets the level of its port",
    not_measured="it discards new connections that the level does not let in",
)  # fmt: skip
