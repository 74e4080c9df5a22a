"""Setting a fleet up: fwtop fleet init, token, join, leave, nodes."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

from msgspec.structs import asdict

from fwtop.cli.launcher import require_root
from fwtop.cli.options import Verb, add_netns, flag, option, seconds, whole
from fwtop.fleet import founding, joining, machine, register
from fwtop.fleet.broker import Broker
from fwtop.fleet.document import SIGNED_FOR
from fwtop.fleet.founding import CLUSTER_PORT, OperatorFile, ServerPlace, Token
from fwtop.fleet.keys import MachineKey
from fwtop.fleet.register import Register
from fwtop.model import paths
from fwtop.model.errors import FwtopError
from fwtop.model.text import safe_text
from fwtop.render.numbers import duration

SERVER_UNIT, NODE_UNIT = "fwtop-broker.service", "fwtop-fleet.service"
_TOKEN_SECONDS = 86_400.0
_DIRECTORY = paths.fleet_directory(None)


def add_operators(parser: argparse.ArgumentParser) -> None:
    """Add --fleet."""
    where = "the operators' directory that 'fwtop fleet init' made"
    option(parser, "--fleet", "DIRECTORY", where, Path, default=_DIRECTORY / "operator")


def _init_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", help="the fleet's name, for example prod")
    where = parser.add_mutually_exclusive_group(required=True)
    listen = "address or name at which machines reach the server; for three servers repeat it"
    where.add_argument("--listen", action="append", metavar="HOST", help=listen)
    nats = (
        "use this NATS, which is there: nats://HOST:PORT, or tls://… if TLS comes first; repeat it for more"
    )
    where.add_argument("--nats", action="append", metavar="URL", help=nats)
    seed = "with --nats: file with the seed of a key that signs the account's users"
    option(parser, "--account-seed", "FILE", seed, Path)
    option(parser, "--account", "KEY", "with --nats: the account's public key, if the seed is not its own")
    option(parser, "--ca", "FILE", "with --nats: certificates of who signs the servers'", Path)
    signer = "public SSH key of an operator, whose signatures machines will obey; repeat it for more"
    parser.add_argument("--signer", type=Path, action="append", required=True, metavar="FILE", help=signer)
    option(parser, "--port", "N", "TCP port", whole("a port", 1, 65_535), default=founding.PORT)
    option(parser, "--directory", "DIRECTORY", "where to write", Path, default=_DIRECTORY)
    option(parser, "--store", "DIRECTORY", "where the servers store documents", Path, default=founding.STORE)


def _init(args: argparse.Namespace) -> int:
    """Write everything, start the server where systemd runs, and print what to do next."""
    if args.nats:
        return _adopt(args)
    places = [ServerPlace(host, args.port) for host in args.listen]
    if len(places) not in (1, 3):
        raise FwtopError("give --listen once, or three addresses for a cluster; nothing was changed", 2)
    signers = "".join(_signer(path) for path in args.signer)
    founding.found(args.directory, args.name, places, signers, store=args.store)
    print(f"fleet {args.name}: {args.directory}/operator is for operators: it is secret, keep a copy")
    if len(places) == 1:
        _hand_to_server(args.directory / "server")
        if _has_systemd() and args.directory == _DIRECTORY:
            _systemctl("enable", "--now", SERVER_UNIT)
            print(f"the server runs: systemctl status {SERVER_UNIT}")
        else:
            print(f"start the server: {' '.join(server_command(args.directory / 'server'))}")
    else:
        there = args.directory / "server"
        for number, place in enumerate(places, 1):
            print(f"{place.host}: copy {there}-{number} there, as {there}, owned by {paths.BROKER_USER}")
        print(f"start each: systemctl enable --now {SERVER_UNIT}; they talk over TCP port {CLUSTER_PORT}")
    print("then, for each machine: fwtop fleet token")
    return 0


def _adopt(args: argparse.Namespace) -> int:
    """Make a fleet on a NATS that is there: make its streams, and write what operators need."""
    if args.ca is None or args.account_seed is None:
        raise FwtopError("--nats takes --ca and --account-seed, too; nothing was changed", 2)
    if not all(re.fullmatch(r"(nats|tls)://[^\s/,]+:\d+", url) for url in args.nats):
        raise FwtopError("--nats takes nats://HOST:PORT or tls://HOST:PORT; nothing was changed", 2)
    signers, seed = "".join(_signer(path) for path in args.signer), _text(args.account_seed)
    [seed] = re.findall(r"\bSA[A-Z2-7]{56}\b", seed)[:1] or [""]
    urls, authority = tuple(args.nats), _text(args.ca)
    file = founding.adopted(args.directory, args.name, urls, authority, seed=seed, account=args.account or "")
    asyncio.run(_prepared(file))
    founding.write_operators(args.directory, file, signers, {})
    print(f"fleet {args.name}: {args.directory}/operator is for operators: it is secret, keep a copy")
    print(f"its streams are on {', '.join(urls)}: machines join with this address")
    print("then, for each machine: fwtop fleet token")
    return 0


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError) as error:
        raise FwtopError(f"{safe_text(path)}: {safe_text(error)}; nothing was changed", 2) from None


def server_command(directory: Path) -> list[str]:
    """Return what runs a server by hand."""
    from fwtop.fleet.server import argv

    return argv(directory)


def _signer(path: Path) -> str:
    """Return the line of a signers file for a public key; raises FwtopError."""
    try:
        words = path.read_text(encoding="utf-8").split()
    except (OSError, UnicodeDecodeError) as error:
        raise FwtopError(f"{safe_text(path)}: {safe_text(error)}; nothing was changed", 2) from None
    if len(words) < 2 or not words[0].startswith(("ssh-", "sk-", "ecdsa-")):
        raise FwtopError(f"{safe_text(path)} is no public SSH key; nothing was changed", 2)
    who = words[2] if len(words) > 2 else path.stem
    return f'{who} namespaces="{SIGNED_FOR}" {words[0]} {words[1]}\n'


def _hand_to_server(directory: Path) -> None:
    """Give the server's files to its user, if there is one here."""
    try:
        for path in (directory, *directory.iterdir()):
            shutil.chown(path, paths.BROKER_USER, paths.BROKER_USER)
    except (LookupError, PermissionError):
        return


def _token_arguments(parser: argparse.ArgumentParser) -> None:
    option(
        parser,
        "--machines",
        "N",
        "how many may join by it",
        whole("a number of machines", 1, 10_000),
        default=1,
    )
    option(parser, "--for", "TIME", "how long it is valid (default 1d)", seconds, default=_TOKEN_SECONDS)
    add_operators(parser)


def _token(args: argparse.Namespace) -> int:
    """Print a token, once the servers have what those need who come by it."""
    file = founding.read_operator(args.fleet)
    asyncio.run(_prepared(file))
    signers = (args.fleet / founding.SIGNERS_FILE).read_text(encoding="utf-8")
    print(founding.token(file, signers, args.machines, getattr(args, "for")).text)
    return 0


async def _prepared(file: OperatorFile) -> None:
    async with await Broker.connect(file.access) as broker:
        await broker.make_streams(file.replicas)
        known = await register.read(broker, file.fleet, MachineKey(file.registrar))
    await _renew(file, known)


async def _renew(file: OperatorFile, known: Register) -> None:
    """Give the servers anew who may do what, as this program writes it, unless others run them."""
    if not file.is_own:
        return
    async with await Broker.connect(file.system_access()) as system:
        await system.renew_account(founding.account_jwt(file.seeds, known.removed))


def _join_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("url", help="a server, as tls://192.0.2.1:4222; several: with commas")
    parser.add_argument(
        "token", help="what 'fwtop fleet token' printed, or '-' to read it from standard input"
    )
    option(parser, "--name", "NAME", "this machine's name in the fleet (default: its host name)")
    option(parser, "--labels", "A,B", "what documents are for: roles, sites, …", default="")
    option(parser, "--wait", "TIME", "how long to wait to be admitted (default 10m)", seconds, default=600.0)
    add_netns(parser)


def _join(args: argparse.Namespace) -> int:
    """Make keys, ask, wait, write the files, start the service."""
    require_root("joining a fleet")
    given = sys.stdin.read() if args.token == "-" else args.token  # noqa: S105 - no password
    token, directory = Token.of(given), paths.fleet_directory(args.netns)
    labels = tuple(label for label in args.labels.split(",") if label)
    name = args.name or socket.gethostname().partition(".")[0]
    file = _mine(directory, token) or joining.new_node(token, tuple(args.url.split(",")), name, labels)
    machine.write_node(directory, file, machine.node_group())  # keys stay, whatever ends this process
    print(f"{file.name} asks to join {file.fleet}; to admit it: fwtop fleet nodes --approve {file.name}")
    admitted = asyncio.run(_asked(token, file, args.wait))
    if admitted is None:
        raise FwtopError("nobody has admitted it yet; the same command again goes on waiting")
    machine.write_identity(directory, admitted, token.signers)
    machine.write_node(directory, admitted, machine.node_group())
    print(f"{file.name} is a machine of {file.fleet}; it obeys whom {directory / machine.SIGNERS_FILE} names")
    if args.netns is None and _has_systemd():
        _systemctl("enable", "--now", NODE_UNIT)
    else:
        print(f"start the node: fwtop fleet node{f' --netns {args.netns}' if args.netns else ''}")
    return 0


def _mine(directory: Path, token: Token) -> machine.NodeFile | None:
    """Return the file of an earlier call that was not admitted yet; raises FwtopError for a member."""
    if not (directory / machine.NODE_FILE).exists():
        return None
    file = machine.read_node(directory)
    if file.jwt:
        raise FwtopError(
            f"this machine is {file.name} of {file.fleet}; 'fwtop fleet leave' first; nothing was changed"
        )
    return file if file.fleet == token.fleet else None


async def _asked(token: Token, file: machine.NodeFile, wait: float) -> machine.NodeFile | None:
    async with await Broker.connect(joining.access(token, file)) as broker:
        return await joining.ask(broker, token, file, wait)


def _leave(args: argparse.Namespace) -> int:
    """Stop the service and remove the files; rules that are in force end by their clocks."""
    require_root("leaving a fleet")
    directory = paths.fleet_directory(args.netns)
    file = machine.read_node(directory)
    if args.netns is None and _has_systemd():
        _systemctl("disable", "--now", NODE_UNIT)
    for name in (machine.NODE_FILE, machine.MACHINE_FILE):
        (directory / name).unlink(missing_ok=True)
    print(f"{file.name} left {file.fleet}; rules in force end by themselves, or by 'fwtop undo'")
    return 0


def _nodes_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="*", help="with --approve or --remove: which (--approve: default all)")
    flag(parser, "--approve", "admit machines that wait")
    flag(parser, "--replace", "with --approve: also in the place of a machine of the same name")
    flag(parser, "--remove", "believe these machines no more, and let them connect no more")
    flag(parser, "--json", "print one JSON document")
    add_operators(parser)


def _nodes(args: argparse.Namespace) -> int:
    if args.name and not (args.approve or args.remove):
        raise FwtopError("names go with --approve or --remove; nothing was changed", 2)
    return asyncio.run(_with_nodes(args, founding.read_operator(args.fleet)))


async def _with_nodes(args: argparse.Namespace, file: OperatorFile) -> int:
    registrar = MachineKey(file.registrar)
    async with await Broker.connect(file.access) as broker:
        admitted = []
        if args.approve:
            admitted = await joining.admit(broker, file, args.name, instead=args.replace)
        known = await register.read(broker, file.fleet, registrar)
        if args.remove:
            known = await _remove(file, broker, known, args.name)
        waiting = await joining.pending(broker, file, known)
    if args.json:
        machines = [{"name": name, **asdict(member)} for name, member in known.machines.items()]
        rows = [{"token": one.token, "why_not": one.why_not, **asdict(one.request)} for one in waiting]
        print(
            json.dumps(
                {
                    "schema": 1,
                    "fleet": file.fleet,
                    "machines": machines,
                    "waiting": rows,
                    "admitted": admitted,
                }
            )
        )
        return 0
    for name in admitted:
        print(f"{name}: admitted")
    for name, member in sorted(known.machines.items()):
        print(f"{name:<24} {' '.join(member.labels):<24} for {duration(time.time() - member.since)}")
    for one in waiting:
        why = f": {one.why_not}" if one.why_not else f"; fwtop fleet nodes --approve {one.request.name}"
        print(f"{one.request.name:<24} {' '.join(one.request.labels):<24} waits{why}")
    if not (known.machines or waiting):
        print("no machine yet; 'fwtop fleet token' lets one ask to join")
    return 0


async def _remove(file: OperatorFile, broker: Broker, known: Register, names: list[str]) -> Register:
    """Take machines from the register, and have the servers let them in no more; raises FwtopError."""
    if not names or (missing := set(names) - known.machines.keys()):
        said = ", ".join(map(safe_text, sorted(missing))) if names else "nobody"
        raise FwtopError(f"{said}: no machine of this name; nothing was changed", 2)
    registrar, rest = MachineKey(file.registrar), known.without(names)
    await register.write(broker, rest, registrar)
    await _renew(file, rest)
    for name in names if not file.is_own else ():
        nsc = (
            f"nsc revocations add-user --account {file.account} --user-public-key {known.machines[name].user}"
        )
        print(
            f"{name} is believed no more; let in no more once who runs the servers does: {nsc}",
            file=sys.stderr,
        )
    return await register.read(broker, file.fleet, registrar)


def _revoke_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="+", help="of the machine")
    flag(parser, "--json", "print one JSON document")
    add_operators(parser)


def _revoke(args: argparse.Namespace) -> int:
    args.approve, args.remove = False, True
    return _nodes(args)


def _has_systemd() -> bool:
    return paths.SYSTEMD_BOOTED.is_dir() and paths.INSTALLED_APP.exists()


def _systemctl(*arguments: str) -> None:
    done = subprocess.run(
        ["systemctl", *arguments], capture_output=True, text=True, check=False, env={**os.environ}
    )
    if done.returncode:
        raise FwtopError(f"systemctl {' '.join(arguments)}: {safe_text(done.stderr.strip(), limit=200)}")


ACTIONS = {
    "init": Verb(
        "Make a new fleet: keys, an authority for TLS, the configuration of one server (or three), and the "
        "operators' directory. Machines obey whom --signer names.",
        "fwtop fleet init prod --listen 192.0.2.1 --signer ~/.ssh/id_ed25519.pub",
        _init_arguments,
        _init,
    ),
    "token": Verb(
        "Print a token with which machines ask to join. It pins the servers' authority, and expires.",
        "fwtop fleet token --machines 2",
        _token_arguments,
        _token,
    ),
    "join": Verb(
        "Have this machine ask to join a fleet, with keys that it makes and that never leave it; wait until "
        "an operator admits it; start the node.",
        "fwtop fleet join tls://192.0.2.1:4222 TOKEN --labels web,eu",
        _join_arguments,
        _join,
    ),
    "leave": Verb(
        "Have this machine leave its fleet. What is in force ends by its own time, or by 'fwtop undo'.",
        "fwtop fleet leave",
        add_netns,
        _leave,
    ),
    "revoke": Verb(
        "Believe machines no more, and let them connect no more, as 'fwtop fleet nodes --remove' does.",
        "fwtop fleet revoke web-2",
        _revoke_arguments,
        _revoke,
    ),
    "nodes": Verb(
        "List the machines, and those that wait to be admitted.",
        "fwtop fleet nodes --approve web-2",
        _nodes_arguments,
        _nodes,
    ),
}
