"""Ban with fwtop: a jail has a named list, and one rule on it, however many addresses it bans.

Copy this file to /etc/fail2ban/action.d/, and name it in a jail: action = fwtop.py, or fwtop.py[via=xdp]
(ipset, which is the default, xdp, tc, nftables). The protocol is that of docs/API.md, "Without the stream".
"""

import json
import os
import socket
import subprocess
import time

from fail2ban.server.action import ActionBase

RULE_SECONDS = 10 * 86_400  # a rule ends by itself if fail2ban never comes back
KEEP_SECONDS = 86_400


class Action(ActionBase):
    """One jail."""

    def __init__(self, jail, name, via="ipset", **_):
        super().__init__(jail, name)
        self.list, self.via = f"f2b-{jail.name}"[:18], via
        self.socket = self.rule = None
        self.kept = 0.0

    def start(self):
        """Make list and rule; a list that a former fail2ban left is taken over."""
        if not self.ask(verb="listshow", name=self.list)["ok"]:
            self.demand(verb="listchange", action="create", name=self.list, entries=[])
        origin, summary = f"list:{self.list}", f"fail2ban {self.list}"
        rules = self.demand(verb="status")["rules"]
        self.rule = next((one["rule"]["id"] for one in rules if one["rule"].get("origin") == origin), None)
        if self.rule is None:
            rule = dict(kind=self.via, match={}, origin=origin, summary=summary, ttl_seconds=RULE_SECONDS)
            done = self.demand(verb="apply", rule=rule, confirm_seconds=0)
            self.rule = done["status"]["rule"]["id"]
        self.kept = time.monotonic()

    def ban(self, info):
        """Add an address; it leaves the list by itself, too, should fail2ban be gone."""
        if time.monotonic() - self.kept > KEEP_SECONDS:
            if not self.ask(verb="keep", id=self.rule, ttl_seconds=RULE_SECONDS)["ok"]:
                self.start()
            self.kept = time.monotonic()
        seconds = int(info["bantime"])
        self.change("add", info["ip"], seconds if seconds > 0 else None)

    def unban(self, info):
        """Take an address out."""
        self.change("remove", info["ip"])

    def stop(self):
        """End the rule, and forget the list."""
        self.ask(verb="undo", ids=[self.rule])
        self.ask(verb="listchange", action="delete", name=self.list, entries=[])

    def change(self, action, address, seconds=None):
        self.demand(
            verb="listchange", action=action, name=self.list, entries=[str(address)], ttl_seconds=seconds
        )

    def demand(self, **request):
        answer = self.ask(**request)
        if not answer["ok"]:
            raise RuntimeError(f"fwtop: {answer['error']}")
        return answer.get("data", {})

    def ask(self, **request):
        """Send a request; once more on a new connection if the guardian was started again."""
        try:
            return self.exchange(request)
        except OSError:
            self.socket = None
            return self.exchange(request)

    def connect(self):
        path = f"/run/fwtop/{os.stat('/proc/self/ns/net').st_ino}.api"
        for last in (False, True):
            try:
                self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                self.socket.settimeout(30)
                self.socket.connect(path)
                break
            except OSError:
                if last:
                    raise
                subprocess.run(["fwtop", "status"], stdout=subprocess.DEVNULL, check=True)  # starts one
        self.exchange({"verb": "hello", "role": "program", "version": 1})

    def exchange(self, request):
        if self.socket is None:
            self.connect()
        self.socket.send(json.dumps(request).encode())
        parts = [self.socket.recv(1 << 20)]
        while parts[-1][:1] == b"+":
            parts.append(self.socket.recv(1 << 20))
        if not parts[-1]:
            raise ConnectionError("the guardian ended")
        whole = b"".join(part[1:] for part in parts) if parts[0][:1] in b"+." else parts[0]
        return json.loads(whole)
