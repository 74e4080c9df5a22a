"""A disk that hangs, and a foreign rule set of any length: rules end in time all the same."""

from __future__ import annotations

import contextlib
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from guardian_bench import Bench, apply, rules_of
from msgspec.structs import replace

from fwtop.client.discovery import GuardianClient
from fwtop.model.addresses.address import Prefix
from fwtop.model.protocol import Keep, Undo
from fwtop.model.rule import Match, Rule

pytestmark = pytest.mark.kernel
RULES = 6
SOON = 12.0  # seconds: iptables-nft-save takes longer, and who waited for the disk would wait for ever
FOREIGN = 60_000


def states(guardian: GuardianClient) -> list[str]:
    return sorted(item["state"] for item in rules_of(guardian, finished=True).values())


@contextlib.contextmanager
def undoing(guardian: GuardianClient) -> Iterator[list[float]]:
    """Undo everything meanwhile; the list gets the seconds until the answer."""
    took: list[float] = []
    started = time.monotonic()

    def undo() -> None:
        guardian.demand(Undo(all=True))
        took.append(time.monotonic() - started)

    thread = threading.Thread(target=undo)
    thread.start()
    yield took
    thread.join()


def seconds_until_passes(bench: Bench) -> float:
    started = time.monotonic()
    while not bench.path(4).passes(wait_s=0.1):
        assert time.monotonic() - started < 60
    return time.monotonic() - started


def blocking(bench: Bench, number: int) -> Rule:
    """Block the attacker, and another address for each rule: no rule goes in twice."""
    rule = bench.block_rule(4, ttl=300)
    return replace(rule, match=Match(sources=(*rule.match.sources, Prefix(4, (11 << 24) + number, 32))))


@pytest.fixture
def freezable(bench: Bench) -> Iterator[Path]:
    """A file system for what outlasts a boot, which fsfreeze(8) can stop."""
    image, place = bench.directory / "image", bench.directory / "disk"
    place.mkdir()
    with image.open("wb") as file:
        file.truncate(32 << 20)
    subprocess.run(["mke2fs", "-t", "ext4", "-q", str(image)], check=True, timeout=60)
    mounting = ["mount", "-o", "loop", str(image), str(place)]
    mounted = subprocess.run(mounting, check=False, capture_output=True, text=True, timeout=60)
    if mounted.returncode:
        pytest.skip(f"no loop device can be mounted here: {mounted.stderr.strip()}")
    bench.state_directory = place
    yield place
    subprocess.run(["fsfreeze", "-u", str(place)], check=False, capture_output=True, timeout=60)
    bench.close()
    subprocess.run(["umount", "-l", str(place)], check=True, timeout=60)


@contextlib.contextmanager
def frozen(place: Path) -> Iterator[None]:
    subprocess.run(["fsfreeze", "-f", str(place)], check=True, timeout=60)
    try:
        yield
    finally:
        subprocess.run(["fsfreeze", "-u", str(place)], check=True, timeout=60)


def test_rules_live_and_end_in_time_on_a_frozen_disk(bench: Bench, freezable: Path) -> None:
    """The disk gets nothing but the last number, from a thread: so the next boot goes on counting."""
    with bench.connect() as guardian:
        for number in range(RULES):
            apply(guardian, blocking(bench, number))
    bench.kill_guardian()
    with frozen(freezable), bench.connect() as successor:
        kept = apply(successor, bench.block_rule(6), 30)
        successor.demand(Keep(kept, 600))
        assert list(rules_of(successor)) == [str(number + 1) for number in range(RULES + 1)]
        with undoing(successor) as took:
            assert seconds_until_passes(bench) < SOON
        assert took[0] < SOON
        assert states(successor) == ["reverted"] * (RULES + 1)


def test_first_rule_of_a_boot_does_not_wait_long_for_a_frozen_disk(
    bench: Bench, freezable: Path, poll_until
) -> None:
    (freezable / "last-rule").write_text("41")
    with bench.connect() as guardian:
        with frozen(freezable):
            rule_id = apply(guardian, bench.block_rule(4))
            assert not bench.path(4).passes()
        assert int(rule_id) == 42
        poll_until(lambda: (freezable / "last-rule").read_text() == "42")
        guardian.demand(Undo(all=True))


def test_many_foreign_rules_keep_no_guardian_from_starting_and_no_rule_from_ending(bench: Bench) -> None:
    """iptables-nft-save takes 15 seconds for these, and as much again for IPv6's."""
    lines = [
        f"-A PREROUTING -s 198.{number >> 16}.{number >> 8 & 255}.{number & 255} -j ACCEPT"
        for number in range(FOREIGN)
    ]
    saved = bench.directory / "saved"
    saved.write_text("\n".join(["*raw", *lines, "COMMIT", ""]))
    bench.pair.victim.run("sh", "-c", f"iptables-nft-restore < {saved}")
    with bench.connect() as guardian:
        assert rules_of(guardian) == {}
        apply(guardian, bench.block_rule(4, ttl=300))
        assert not bench.path(4).passes()
    bench.kill_guardian()
    with bench.connect() as successor:
        assert len(rules_of(successor)) == 1
        with undoing(successor):
            assert seconds_until_passes(bench) < SOON
        assert rules_of(successor) == {}
    left = bench.pair.victim.run("nft", "list", "chains", "ip").stdout
    assert "FWTOP" not in left
