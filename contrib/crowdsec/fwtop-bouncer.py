#!/usr/bin/env python3
"""A bouncer for CrowdSec: its bans are a named list of fwtop, and one rule on it.

  cscli bouncers add fwtop -o raw > /etc/fwtop/crowdsec.key
  fwtop-bouncer.py [--url http://127.0.0.1:8080] [--key-file /etc/fwtop/crowdsec.key] [--via xdp]

The list changes by differences. While the LAPI can't be asked, it stays as it is; if this program ends, the
rule ends an hour later.
"""

import argparse
import ipaddress
import json
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from pathlib import Path

sys.path.insert(0, "/usr/local/lib/fwtop/app")
from fwtop.client import FwtopError, connect

RULE_SECONDS, KEEP_SECONDS = 3_600, 600


def network(text):
    return str(ipaddress.ip_network(text, strict=False))


class Bouncer:
    def __init__(self, options):
        self.options = options
        self.fwtop = connect()
        self.decisions = {}  # id → network: several may ban the same one
        self.held = None  # what the list holds; None: ask
        self.startup = True
        self.due = 0.0  # when the rule is kept again

    def step(self):
        """Ask the LAPI for what changed, and change the list."""
        query = {"startup": str(self.startup).lower(), "dedup": "false", "scopes": "ip,range"}
        url = f"{self.options.url}/v1/decisions/stream?{urllib.parse.urlencode(query)}"
        key = self.options.key_file.read_text().strip()
        request = urllib.request.Request(url, headers={"X-Api-Key": key, "User-Agent": "fwtop-bouncer/1"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            told = json.load(answer)
        if self.startup:
            self.decisions.clear()
        for item in told.get("deleted") or ():
            self.decisions.pop(item["id"], None)
        for item in told.get("new") or ():
            if item["type"] == "ban" and item["scope"].lower() in ("ip", "range"):
                self.decisions[item["id"]] = network(item["value"])
        self.startup = False
        self.hold(set(self.decisions.values()))
        self.keep()

    def hold(self, wanted):
        name = self.options.list
        if self.held is None:
            if name not in {one["name"] for one in self.fwtop.lists()}:
                self.fwtop.change_list("create", name)
            self.held = {network(entry) for entry, _ in self.fwtop.entries(name)}
        self.change("add", sorted(wanted - self.held))
        self.change("remove", sorted(self.held - wanted))
        self.held = wanted

    def change(self, action, entries):
        """Change the list; an entry that is refused, as it is on the allow-list, keeps no other one out."""
        try:
            if entries:
                self.fwtop.change_list(action, self.options.list, entries)
        except FwtopError as error:
            if error.reason == "unavailable":
                raise
            if len(entries) == 1:
                print(f"{action} {entries[0]}: {error}", file=sys.stderr, flush=True)
                return
            self.change(action, entries[: len(entries) // 2])
            self.change(action, entries[len(entries) // 2 :])

    def keep(self):
        """Have a rule use the list, and restart its time to live."""
        if time.monotonic() < self.due:
            return
        name = self.options.list
        rule = dict(kind=self.options.via, match={}, origin=f"list:{name}", summary=f"block list {name}")
        made = self.fwtop.apply({**rule, "ttl_seconds": RULE_SECONDS}, confirm_seconds=0, key=name)
        self.fwtop.keep(made["rule"]["id"], RULE_SECONDS)
        self.due = time.monotonic() + KEEP_SECONDS


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--url", default="http://127.0.0.1:8080")
    parser.add_argument("--key-file", type=Path, default=Path("/etc/fwtop/crowdsec.key"))
    parser.add_argument("--list", default="crowdsec")
    parser.add_argument("--via", default="ipset", choices=("ipset", "xdp", "tc", "nftables"))
    parser.add_argument("--every", type=float, default=10.0, help="seconds between two questions")
    options, bouncer = parser.parse_args(), None
    while True:
        try:
            bouncer = bouncer or Bouncer(options)
            bouncer.step()
        except (OSError, ValueError, KeyError, FwtopError) as error:
            if bouncer is not None:
                bouncer.held, bouncer.due = None, 0.0  # what is there is asked again, and stays meanwhile
            print(f"fwtop-bouncer: {error}", file=sys.stderr, flush=True)
            if getattr(error, "reason", "") == "unavailable":
                subprocess.run(
                    ["fwtop", "status"], stdout=subprocess.DEVNULL, check=False
                )  # starts a guardian
        time.sleep(options.every)


if __name__ == "__main__":
    main()
