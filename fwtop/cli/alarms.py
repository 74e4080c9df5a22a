"""fwtop alarms: show where the recorder's alarms go, or send a test alarm."""

from __future__ import annotations

import argparse
import json
import os
import socket
import sys
import time
from pathlib import Path
from urllib.parse import urlsplit

from fwtop.alarms.config import FILE, AlarmConfig, read_alarms
from fwtop.alarms.message import JOURNAL, Alarm
from fwtop.alarms.supervisor import Started, start_alarms
from fwtop.cli.files import read_config
from fwtop.cli.launcher import require_root
from fwtop.cli.options import option
from fwtop.model.errors import FwtopError
from fwtop.model.text import safe_text
from fwtop.model.wire import plain
from fwtop.render.observation import rfc3339

HELP = f"Show where the alarms of 'fwtop record' go ({FILE}), or send a test alarm."
EXAMPLE = "sudo fwtop alarms test"


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments."""
    what = "show the settings (default), or send a test alarm"
    parser.add_argument("what", nargs="?", choices=("show", "test"), default="show", help=what)
    add_file(parser)


def add_file(parser: argparse.ArgumentParser) -> None:
    """Add --alarms."""
    option(parser, "--alarms", "FILE", "alarm settings", Path, default=Path(FILE))


def read_file(path: Path) -> AlarmConfig:
    """Read the settings, which must be root's; say on standard error what is wrong in them."""
    config, wrong = read_alarms(read_config(path, owners=(0,)))
    for line in wrong:
        print(f"fwtop: {line}", file=sys.stderr)
    return config


def start(config: AlarmConfig) -> Started:
    """Start the process that delivers alarms; raises FwtopError if its user or the secret is not there."""
    secret = ""
    if config.webhook and config.webhook_secret_file:
        path = Path(config.webhook_secret_file)
        file = read_config(path, owners=(0,))
        secret = "" if file is None else file.text.strip()
        if not secret:
            reason = "there is no such file" if file is None else file.wrong or "it is empty"
            raise FwtopError(
                f"{safe_text(path)} holds no secret for the webhook: {reason}; nothing was started", 2
            )
    return start_alarms(config, secret=secret)


def run(args: argparse.Namespace) -> int:
    """Print the settings, or deliver a test alarm and wait for that; 1: it could not be delivered."""
    if args.what == "show":
        for name, value in plain(read_file(args.alarms)).items():
            print(f"{name} = {json.dumps(value)}")
        return 0
    require_root("a test alarm")
    config = read_file(args.alarms)
    host = safe_text(socket.gethostname(), limit=64)
    alarm = Alarm("test", rfc3339(time.time()), host, "test", "This is a test of fwtop's alarms")
    started = start(config)
    os.write(started.descriptor, alarm.line())
    os.close(started.descriptor)
    status = os.waitstatus_to_exitcode(os.waitpid(started.pid, 0)[1])
    if status == 0:
        log = "the journal" if Path(JOURNAL).exists() else "standard error"
        hosts = [urlsplit(config.webhook).hostname or ""] if config.webhook else []
        targets = [*([log] if config.journal else []), *config.command[:1], *hosts, *config.mail_to]
        print(f"a test alarm went to {safe_text(' and '.join(targets) or 'nobody: nothing is set')}")
    return int(status != 0)
