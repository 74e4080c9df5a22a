"""Ban with fwtop: a jail has a named list, and one rule on it, however many addresses it bans.

Copy this file to /etc/fail2ban/action.d/, and name it in a jail: action = fwtop-ban.py, or
fwtop-ban.py[via=xdp] (ipset, which is the default, xdp, tc, nftables). It needs Python 3.11, as fwtop.
"""

import subprocess
import sys
import time

from fail2ban.server.action import ActionBase

sys.path.insert(0, "/usr/local/lib/fwtop/app")
from fwtop.client import FwtopError, connect

RULE_SECONDS = 10 * 86_400  # a rule ends by itself if fail2ban never comes back
KEEP_SECONDS = 86_400


class Action(ActionBase):
    """One jail."""

    def __init__(self, jail, name, via="ipset", **_):
        super().__init__(jail, name)
        self.list, self.via = f"f2b-{jail.name}"[:18], via
        self.program = self.rule = None
        self.kept = 0.0

    def start(self):
        """Make list and rule; those that a former fail2ban left are taken over."""
        if self.list not in {one["name"] for one in self.ask("lists")}:
            self.ask("change_list", "create", self.list)
        origin, summary = f"list:{self.list}", f"fail2ban {self.list}"
        rule = dict(kind=self.via, match={}, origin=origin, summary=summary, ttl_seconds=RULE_SECONDS)
        self.rule = self.ask("apply", rule, confirm_seconds=0, key=self.list)["rule"]["id"]
        self.kept = time.monotonic()

    def ban(self, info):
        """Add an address; it leaves the list by itself, too, should fail2ban be gone."""
        if time.monotonic() - self.kept > KEEP_SECONDS:
            try:
                self.ask("keep", self.rule, RULE_SECONDS)
            except FwtopError:
                self.start()
            self.kept = time.monotonic()
        seconds = int(info["bantime"])
        ttl_seconds = seconds if seconds > 0 else None
        self.ask("change_list", "add", self.list, [str(info["ip"])], ttl_seconds=ttl_seconds)

    def unban(self, info):
        """Take an address out."""
        self.ask("change_list", "remove", self.list, [str(info["ip"])])

    def stop(self):
        """End the rule, and forget the list."""
        self.ask("undo", self.rule)
        self.ask("change_list", "delete", self.list)

    def ask(self, method, *values, **more):
        """Call a method of fwtop.client; once more if no guardian was there, and one is started."""
        try:
            return self.asked(method, *values, **more)
        except FwtopError as error:
            if error.reason != "unavailable":
                raise
            subprocess.run(["fwtop", "status"], stdout=subprocess.DEVNULL, check=True)  # starts one
            return self.asked(method, *values, **more)

    def asked(self, method, *values, **more):
        self.program = self.program or connect()
        return getattr(self.program, method)(*values, **more)
