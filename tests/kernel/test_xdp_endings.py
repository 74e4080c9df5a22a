"""Compiled rules end even if their program can't be replaced or opened, and the guardian survives."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from guardian_bench import PORT, apply, rules_of
from xdp_bench import XdpBench, xdp

from fwtop.model.protocol import Undo
from fwtop.model.rule import Match

pytestmark = pytest.mark.kernel
BENCH = XdpBench
OTHER = PORT + 1


def pins_of(bench: XdpBench) -> Path:
    return Path(f"/sys/fs/bpf/fwtop/{os.stat(f'/run/netns/{bench.netns}').st_ino}")


@contextmanager
def broken(pin: Path, other: Path) -> Iterator[None]:
    """Replace a pin by another object, so that the loader fails on it, until the block ends."""
    aside = pin.with_name("aside")
    pin.rename(aside)
    os.link(other, pin)
    try:
        yield
    finally:
        if aside.exists():  # else everything was removed with the last rule
            pin.unlink(missing_ok=True)
            aside.rename(pin)


def test_undo_ends_the_rule_even_if_recompilation_fails(bench: XdpBench, poll_until) -> None:
    path = bench.path(4)
    with bench.connect() as guardian:
        stays = apply(guardian, xdp(Match(protocol=17, dport=OTHER)))
        gone = apply(guardian, xdp(Match(protocol=17, dport=PORT)))
        assert not path.passes()
        pins = pins_of(bench)
        link = next(pins.glob("link-*"))
        with broken(link, pins / "slots"):
            guardian.demand(Undo((gone,)))
            assert path.passes(wait_s=30)
            assert list(rules_of(guardian)) == [stays]
            (bench.directory / "allow").write_text("192.0.2.1\n")  # compiled in, which fails, too
            poll_until(lambda: "192.0.2.1" in allowed(guardian))
            assert list(rules_of(guardian)) == [stays]
        again = apply(guardian, xdp(Match(protocol=17, dport=PORT)))
        assert not path.passes()
        guardian.demand(Undo((again,)))
        assert path.passes(wait_s=30)
        guardian.demand(Undo(all=True))
    assert "xdp" not in bench.links()


def test_rules_that_cannot_be_opened_stay_active_and_can_be_ended(bench: XdpBench) -> None:
    path = bench.path(4)
    with bench.connect() as guardian:
        rule_id = apply(guardian, xdp(Match(protocol=17, dport=PORT)))
        pins = pins_of(bench)
    bench.kill_guardian()
    with broken(pins / "counters", pins / "slots"):
        (pins / "counters").unlink()
        with bench.connect() as successor:
            assert list(rules_of(successor)) == [rule_id]
            assert not path.passes()
            successor.demand(Undo((rule_id,)))
            assert path.passes(wait_s=30)
            assert rules_of(successor, finished=True)[rule_id]["note"] == "undone"
    with bench.connect() as successor:
        successor.demand(Undo(all=True))
    assert "xdp" not in bench.links()


def test_ending_one_rule_without_the_pin_of_slots_leaves_the_others(bench: XdpBench) -> None:
    """A new guardian finds the map through the attached program."""
    path = bench.path(4)
    with bench.connect() as guardian:
        gone = apply(guardian, xdp(Match(protocol=17, dport=OTHER)))
        stays = apply(guardian, xdp(Match(protocol=17, dport=PORT)))
        pins = pins_of(bench)
    bench.kill_guardian()
    (pins / "slots").unlink()
    with bench.connect() as successor:
        successor.demand(Undo((gone,)))
        assert not path.passes()
        assert list(rules_of(successor)) == [stays]
        successor.demand(Undo((stays,)))
        assert path.passes(wait_s=30)
    assert "xdp" not in bench.links()


def allowed(guardian) -> set[str]:
    from fwtop.model.protocol import Status

    return {item["prefix"] for item in guardian.demand(Status()).data["allow"]}
