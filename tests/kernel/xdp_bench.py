"""A guardian for tests of compiled rules, and such rules."""

from __future__ import annotations

import os
from pathlib import Path

from guardian_bench import Bench

from fwtop.model.protocol import Undo
from fwtop.model.rule import Kind, Match, Rule

XDP_PASS = 2


class XdpBench(Bench):
    def state(self) -> dict[str, str]:
        """Return the state that undo must restore, including XDP."""
        found = super().state()
        found["link"] = self.pair.victim.run("ip", "-d", "link").stdout
        found["tc"] = self.pair.victim.run("tc", "qdisc").stdout
        found["features"] = self.pair.victim.run("ethtool", "-k", "v0").stdout
        pins = Path("/sys/fs/bpf/fwtop") / str(os.stat(f"/run/netns/{self.netns}").st_ino)
        found["pins"] = ", ".join(sorted(path.name for path in pins.iterdir())) if pins.exists() else "none"
        return found

    def links(self) -> str:
        return self.pair.victim.run("ip", "link", "show", "v0").stdout

    def close(self) -> None:
        """Undo all rules first, as their programs would stay pinned."""
        with self.connect() as guardian:
            guardian.demand(Undo(all=True))
        super().close()


def xdp(match: Match, ttl: int = 600, **options) -> Rule:
    return Rule("", Kind.XDP, match, "drop by XDP", ttl, **options)


def at_tc(match: Match, ttl: int = 600, **options) -> Rule:
    return Rule("", Kind.TC, match, "drop at tc ingress", ttl, **options)
