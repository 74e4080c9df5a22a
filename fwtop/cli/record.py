"""fwtop record: record a session without a screen until stopped, with outputs for other programs."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from fwtop.cli.alarms import add_file, read_file, start
from fwtop.cli.files.record_outputs import listen, open_lines, service_manager
from fwtop.cli.files.screen_files import read_config
from fwtop.cli.launcher import launch, require_root
from fwtop.cli.options import add_geoip, add_interfaces, flag, option, positive, seconds
from fwtop.console.automatic import FILE, read_policy
from fwtop.console.handoff import Options
from fwtop.model.wire import plain

HELP = "Record a session without a screen until stopped, as a service; 'fwtop report' shows the result."
EXAMPLE = "sudo fwtop record -i eth0 --jsonl /var/log/fwtop.jsonl --every 10s"


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments."""
    add_interfaces(parser)
    add_geoip(parser)
    option(
        parser, "--jsonl", "FILE", "append one observation per line to this file or pipe (-: standard output)"
    )
    option(parser, "--every", "TIME", "interval between lines (default 1s)", seconds, default=1.0)
    option(parser, "--top", "N", "entries per list in each line", positive, default=10)
    option(parser, "--max-mib", "N", "stop appending at this file size", positive, default=1024)
    option(
        parser, "--metrics", "ADDRESS", "serve Prometheus metrics at HOST:PORT or unix:/PATH (default: off)"
    )
    flag(parser, "--metrics-public", "allow a --metrics address that other machines can reach")
    add_file(parser)
    option(
        parser,
        "--automatic",
        "FILE",
        f"policy for automatic rules (default {FILE}; if it does not exist: none)",
        Path,
        default=Path(FILE),
    )
    flag(parser, "--no-alarms", "send no alarms, not even to the systemd journal")


def run(args: argparse.Namespace) -> int:
    """Record until stopped."""
    require_root("watching")
    config = read_file(args.alarms)
    alarms = None if args.no_alarms else start(config)
    policy, wrong = read_policy(read_config(args.automatic, owners=(0,)))
    for line in wrong:
        print(f"fwtop: {line}", file=sys.stderr)
    options = Options(
        mode="record",
        netns=args.netns,
        geoip=args.geoip,
        jsonl_fd=open_lines(args.jsonl) if args.jsonl is not None else None,
        jsonl_top=args.top,
        jsonl_seconds=args.every,
        jsonl_bytes=args.max_mib << 20,
        # Before the launcher enters the watched namespace: Prometheus is outside of it.
        metrics_fd=listen(args.metrics, public=args.metrics_public) if args.metrics is not None else None,
        alarms_fd=None if alarms is None else alarms.descriptor,
        alarms=plain(config.for_console()),
        automatic=plain(policy) if policy.enabled else {},
        service_fd=service_manager(),
    )
    return launch(options, args.interface)
