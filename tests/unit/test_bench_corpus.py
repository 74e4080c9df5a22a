"""The corpus: the same windows for the same seed, and packets that are what their labels say."""

import ast
import ipaddress

import numpy as np
import pytest

from benches.accuracy.naming import judged
from benches.corpus import visits
from benches.corpus.arrivals import Arrivals, Frames, senders
from benches.corpus.cases import MIXTURES, cases, draw, families
from benches.corpus.copies import copies
from benches.corpus.profiles import ORDINARY, TOOLS, methods
from benches.corpus.version import _text, version
from fwtop.lab.network import VICTIM_4
from fwtop.lab.scenario import Pool, Ports, Vector
from fwtop.model.traffic.packets import PacketBatch

UDP = 17


def flood(**given: object) -> Vector:
    return Vector(UDP, "flood", "udp_flood", dport=Ports(ports=(27015,)), **given)  # type: ignore[arg-type]


def parsed(frames: Frames) -> PacketBatch:
    from benches.corpus.cases import batch_of

    return batch_of(frames, 1.0)


def test_a_seed_gives_the_same_packets_and_another_gives_others() -> None:
    one, again, other = (draw("lab: udp_flood", 3, seed).window.arrived for seed in (1, 1, 2))
    assert np.array_equal(one.data, again.data)
    assert np.array_equal(one.time_ns, again.time_ns)
    assert not np.array_equal(one.data[: len(other)], other.data[: len(one)])


def test_every_scenario_tool_and_profile_is_a_family() -> None:
    assert (
        len(families()) == len(set(families())) == len(methods()) + len(TOOLS) + len(ORDINARY) + len(MIXTURES)
    )
    assert {"syn_flood", "ntp_reflector", "carpet_bombing"} <= set(methods())
    assert not {"calm", "mixed_vectors", "conntrack_exhaustion"} & set(methods())


@pytest.mark.one_each(*(profile.name for profile in [*ORDINARY, *TOOLS][::3]))
@pytest.mark.parametrize("profile", [*ORDINARY, *TOOLS], ids=lambda profile: profile.name)
def test_a_profile_sends_well_formed_packets_to_the_host_within_the_window(profile) -> None:
    case = draw(f"{'tool' if profile.kind else 'ordinary'}: {profile.name}", 0)
    packets = case.window.arrived
    assert len(packets) > 10
    assert (packets.family != 0).all()
    since = packets.time_ns - 10**12
    assert since.min() >= 0
    assert since.max() < case.window.seconds * 1e9
    assert (since[1:] >= since[:-1]).all()
    four = packets.family == 4
    host = int(ipaddress.ip_address(VICTIM_4))
    assert np.isin(packets.dst_lo[four], (host, host + 1)).all()
    assert [attack.kind for attack in case.attacks] == [profile.kind] * bool(profile.kind)
    assert (packets.ifindex == 1).any() == bool(profile.kind)


def test_copies_have_the_sources_ports_and_bytes_of_their_vector() -> None:
    rng = np.random.default_rng(1)
    vector = flood(source=Pool(forged=False, count=20), payload=({"text": "flood:"}, {"random": 16}))
    packets = parsed(copies(vector, 2000, 1.0, rng, 7))
    assert len(packets) == 2000
    assert len(np.unique(packets.src_lo)) == 20
    assert (packets.dport == 27015).all()
    assert len(np.unique(packets.sport)) > 1000
    start = packets.payload_offset.astype(int)
    assert all(
        bytes(row[at : at + 6]) == b"flood:" for row, at in zip(packets.data[:50], start, strict=False)
    )
    ttl = {(int(src), int(ttl)) for src, ttl in zip(packets.src_lo, packets.ttl, strict=True)}
    assert len(ttl) == 20  # a real host has one distance
    again = parsed(copies(vector, 100, 1.0, np.random.default_rng(2), 7))
    assert set(again.src_lo.tolist()) <= set(packets.src_lo.tolist())


@pytest.mark.parametrize("one_in", [1.0, 500.0])
def test_forged_copies_come_from_everywhere_and_fragments_share_their_datagram(one_in: float) -> None:
    rng = np.random.default_rng(3)
    big = flood(payload=({"zeros": 4000},))
    packets = parsed(copies(big, 3000, one_in, rng, 7))
    assert abs(len(packets) - 3000) < 100
    later = packets.fragment == 2
    assert 0.5 < later.mean() < 0.75  # two of three pieces
    keys = packets.src_lo.astype(np.uint64) << np.uint64(16) | packets.ip_id
    _, counts = np.unique(keys, return_counts=True)
    assert counts.max() == 3
    assert (counts.mean() > 2) == (one_in == 1.0)


def test_connections_have_numbers_that_follow_each_other() -> None:
    from random import Random

    from benches.corpus.cases import window_of
    from fwtop.analysis.config import AdviseConfig
    from fwtop.analysis.window.tcp_view import view_tcp
    from fwtop.analysis.window.traffic import Traffic

    to = Arrivals(Random(1), 5.0, Random(2))
    visits.browsing(to, 3000)
    window = window_of(parsed(Frames.joined([Frames.of(to, 0)])), 5.0, live=True)
    tcp = view_tcp(Traffic.of(window, AdviseConfig()))
    assert tcp.real.mean() > 0.9


def test_real_hosts_share_networks() -> None:
    from random import Random

    made = senders(Random(1), 300)
    assert len({one.address for one in made}) > 250
    assert len({one.address[:3] for one in made}) < 200
    assert all(len(one.address) == 16 for one in senders(Random(1), 5, family=6))


def test_mixtures_hold_attacks_that_differ_in_kind_or_target() -> None:
    mixed = list(cases(1, only=(MIXTURES[0],)))
    assert len(mixed) == 6
    for case in mixed:
        kinds = [attack.kind for attack in case.attacks]
        assert 2 <= len(kinds) == len(set(kinds)) <= 3
    twins = draw(MIXTURES[1], 0)
    packets = twins.window.arrived
    targets = [set(packets.dst_lo[packets.ifindex == label].tolist()) for label in (1, 2)]
    assert twins.attacks[0].kind == twins.attacks[1].kind
    assert not targets[0] & targets[1]


def test_the_version_is_the_same_in_every_python() -> None:
    """Fields that a later Python adds to its tree, or no longer prints, don't count while they are empty."""
    tree = ast.parse("def f(a): return a + 1")
    assert _text(tree) == (
        "Module(body=[FunctionDef(name='f', args=arguments(args=[arg(arg='a')]), body=[Return(value=BinOp("
        "left=Name(id='a', ctx=Load()), op=Add(), right=Constant(value=1)))])])"
    )


def test_the_version_is_that_of_the_statements_not_of_comments_and_imports(tmp_path, monkeypatch) -> None:
    from benches.corpus import version as module

    source = '"""Why."""\ndef send(count):\n    """What."""\n    return count\n'
    path = tmp_path / "one.py"
    monkeypatch.setattr(module, "_modules", lambda: [path])

    def of(text: str) -> str:
        path.write_text(text)
        return version()

    assert of(source) == of(source.replace("What", "How") + "# a comment\n")
    assert of(source) == of(source.replace("def", "from random import Random\n\n\ndef"))
    assert of(source) != of(source.replace("return count", "return count + 1"))
    assert of(source + "A = 1\n") == of('"""Why."""\nA = 1\n' + source.partition("\n")[2])


def test_a_window_may_be_so_quiet_that_nothing_of_it_is_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benches.corpus.cases._one_in", lambda *_: 1e12)
    case = draw("ordinary: browsing", 0)
    assert len(case.window.arrived) == 0
    assert not judged(case).named
