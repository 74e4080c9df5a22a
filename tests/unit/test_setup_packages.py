"""Set-up installs what the program, its tests and its benches start: calls in the source against lists."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from fwtop.model import paths

# Program → Debian package
PACKAGE_OF = {
    "apache2": "apache2-bin",
    "mke2fs": "e2fsprogs",
    "ssh-keygen": "openssh-client",
    "bpftool": "bpftool",
    "bridge": "iproute2",
    "conntrack": "conntrack",
    "ethtool": "ethtool",
    "fail2ban-client": "fail2ban",
    "fail2ban-server": "fail2ban",
    "gcc": "gcc",
    "ip": "iproute2",
    "ip6tables": "iptables",
    "ip6tables-legacy-save": "iptables",
    "ip6tables-nft": "iptables",
    "ip6tables-save": "iptables",
    "ipset": "ipset",
    "iptables": "iptables",
    "iptables-legacy": "iptables",
    "iptables-legacy-restore": "iptables",
    "iptables-legacy-save": "iptables",
    "iptables-nft": "iptables",
    "iptables-nft-restore": "iptables",
    "iptables-nft-save": "iptables",
    "iptables-restore": "iptables",
    "iptables-save": "iptables",
    "jq": "jq",
    "nft": "nftables",
    "nginx": "nginx",
    "openssl": "openssl",
    "slowhttptest": "slowhttptest",
    "socat": "socat",
    "ss": "iproute2",
    "sysctl": "procps",
    "systemd-analyze": "systemd",
    "systemd-nspawn": "systemd-container",
    "tc": "iproute2",
    "tcpdump": "tcpdump",
    "tmux": "tmux",
    "tshark": "tshark",
    "unbound": "unbound",
    "unbound-checkconf": "unbound",
    "xdp-filter": "xdp-tools",
}
# Every Debian has these (Essential: yes, or Priority: required), and git and make are how anybody gets here.
BASE = {
    "bash",
    "cat",
    "dpkg",
    "find",
    "fsfreeze",
    "git",
    "make",
    "mount",
    "nsenter",
    "setpriv",
    "sh",
    "sleep",
}
BASE |= {"tar", "umount", "unshare"}
# Where systemd runs, they are there, and nothing else calls them.
BASE |= {"systemctl", "systemd-run"}
BASE |= {"geoipupdate"}  # it needs the operator's key, and whoever has that has it
# Neighbours that are too large to be installed for a test each, which is the matrix's
BASE |= {"crowdsec", "cscli", "promtool"}
BASE |= {"fwtop"}  # on the path of these
HEADERS = {"libc6-dev"}  # of what gcc compiles
EXAMPLES = {"jq", "socat"}  # contrib/mirror/mirror.sh, which a test runs, starts these
STARTERS = {"run", "Popen", "check_output", "check_call", "which", "Program", "in_netns"}
VERB = "bench"  # a helper of tests is called `run`, too, and starts fwtop
IN_NETNS = ["ip", "netns", "exec"]


class Calls:
    """Collects the programs that a module starts, as far as they are written down in it."""

    def __init__(self, tree: ast.Module) -> None:
        self.programs: set[str] = set()
        self._lists: dict[str, list[ast.expr]] = {}
        self._open: set[str] = set()  # names on the way: a list may begin with what it was before
        calls = []
        for node in ast.walk(tree):
            if isinstance(node, ast.Call):
                calls.append(node)
            elif isinstance(node, ast.Assign) and isinstance(node.value, ast.List | ast.Tuple):
                for target in node.targets:
                    if isinstance(target, ast.Name):
                        self._lists.setdefault(target.id, []).append(node.value)
        for call in calls:
            name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
            if name in STARTERS and call.args:
                self._note(call.args[1:] if name == "in_netns" else call.args)

    def _note(self, values: list[ast.expr]) -> None:
        for argv in self._expanded(values):
            words = argv[4:] if argv[:3] == IN_NETNS else argv
            if argv[:3] == IN_NETNS:
                self.programs.add("ip")
            if words and words[0]:
                self.programs.add(words[0])

    def _expanded(self, values: list[ast.expr]) -> Iterator[list[str]]:
        """Yield the argument lists that these expressions can be, with "" for what is not written down."""
        if not values:
            return
        first = values[0]
        if isinstance(first, ast.List | ast.Tuple):
            yield from self._flat(first.elts)
        elif isinstance(first, ast.Name) and first.id in self._lists:
            yield from self._named(first.id)
        else:
            yield from self._flat(values)

    def _named(self, name: str) -> Iterator[list[str]]:
        """Yield the argument lists that a name was given."""
        if name in self._open:
            return
        self._open.add(name)
        for found in self._lists[name]:
            yield from self._expanded([found])
        self._open.remove(name)

    def _flat(self, elements: list[ast.expr]) -> Iterator[list[str]]:
        """Yield the words of a list; one for each thing that a starred name in it can be."""
        done: list[str] = []
        for at, element in enumerate(elements):
            if isinstance(element, ast.Starred):
                inner = element.value
                if isinstance(inner, ast.Name) and inner.id in self._lists:
                    for words in self._named(inner.id):
                        yield done + words
                    return
                done += text_of(inner).split() or [""]  # unknown words
            elif at > 4:
                break
            else:
                done.append(text_of(element))
        yield done


def text_of(node: ast.expr) -> str:
    """Return the beginning of an expression's text, as far as it is written down."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "split":
        return text_of(node.func.value)
    if isinstance(node, ast.JoinedStr) and node.values:
        return text_of(node.values[0])
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    return ""


def started_by(files: list[Path]) -> dict[str, set[str]]:
    """Return the programs that these files start, each with the files that do."""
    found: dict[str, set[str]] = {}
    for path in files:
        text = path.read_text()
        if not any(f"{name}(" in text for name in STARTERS):  # parsing takes seconds for all files
            continue
        for program in Calls(ast.parse(text)).programs:
            if re.fullmatch(r"[a-z]([a-z0-9-]*[a-z0-9])?", program) and program != VERB:
                found.setdefault(program, set()).add(str(path.relative_to(paths.ROOT)))
    return found


def is_development(path: Path) -> bool:
    return path.parts[len(paths.ROOT.parts)] in {"tests", "scripts", "benches"} or "bench" in path.parts


def listed(name: str) -> set[str]:
    """Return an array of scripts/common.sh."""
    script = f'source "{paths.ROOT}/scripts/common.sh"; printf "%s\\n" "${{{name}[@]}}"'
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=120, check=True)
    return set(done.stdout.split())


def sources() -> list[Path]:
    parts = ("fwtop", "benches", "tests", "scripts")
    return [path for part in parts for path in sorted((paths.ROOT / part).rglob("*.py"))]


def test_calls_are_found_however_they_are_written() -> None:
    text = """
subprocess.run(["one", "-v"])
host.run("two", *words)
shutil.which("three")
argv = ["four"]
with subprocess.Popen(argv): pass
more = ["five"]
run(["ip", "netns", "exec", name, *more])
run("ip", "netns", "exec", name, "six")
in_netns(lab.victim, "seven", "save")
victim.run(*f"eight {name}".split())
victim.run(*unknown.split(), "no")
run([sys.executable, "-m", "no"])
"""
    wanted = {"one", "two", "three", "four", "five", "six", "seven", "eight", "ip"}
    assert Calls(ast.parse(text)).programs == wanted


def unknown(started: dict[str, set[str]]) -> dict[str, set[str]]:
    return {program: files for program, files in started.items() if program not in BASE | set(PACKAGE_OF)}


def packages_of(started: dict[str, set[str]]) -> set[str]:
    return {PACKAGE_OF[program] for program in started if program in PACKAGE_OF}


def test_what_the_program_starts_is_installed_with_it() -> None:
    started = started_by([path for path in sources() if not is_development(path)])
    assert not unknown(started)
    assert packages_of(started) <= listed("packages")


def test_what_tests_and_benches_start_is_installed_for_development_and_nothing_else() -> None:
    started = started_by([path for path in sources() if is_development(path)])
    assert not unknown(started)
    assert packages_of(started) - listed("packages") | HEADERS | EXAMPLES == listed("dev_packages")


def test_the_programs_are_there_and_of_these_packages() -> None:
    """As `make setup-dev` leaves a Debian, or an Ubuntu, where others provide some."""
    script = f'source "{paths.ROOT}/scripts/common.sh"; dpkg -L "$1" || dpkg -L "${{provider[$1]}}"'
    for package in set(PACKAGE_OF.values()):
        argv = ["bash", "-c", script, "-", package]
        shown = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False)
        assert shown.returncode == 0, f"{package} is missing: make setup-dev"
        shipped = {line.removeprefix("/usr") for line in shown.stdout.splitlines()}
        for program in (name for name, of in PACKAGE_OF.items() if of == package):
            place = shutil.which(program, path="/usr/sbin:/usr/bin:/sbin:/bin")
            assert place is not None, program
            assert {place.removeprefix("/usr"), os.path.realpath(place).removeprefix("/usr")} & shipped, (
                program
            )
