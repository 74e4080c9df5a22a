"""The installed copy: whose it is, who can read it, that it starts isolated; doctor leaves no trace."""

from __future__ import annotations

import json
import os
import pwd
import re
import stat
import subprocess

import pytest

from fwtop.model import paths

pytestmark = pytest.mark.kernel
SYSTEM_PATH = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}


def run(*argv: str, **options) -> subprocess.CompletedProcess[str]:
    options.setdefault("env", SYSTEM_PATH)
    return subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False, **options)


def as_console_user(*argv: str) -> subprocess.CompletedProcess[str]:
    return run("setpriv", "--reuid", "fwtop", "--regid", "fwtop", "--clear-groups", "--", *argv, cwd="/")


def test_the_copy_is_roots_and_only_root_can_change_it(installed):
    wrong = []
    for folder, folders, files in os.walk(paths.INSTALL_DIRECTORY):
        for name in (*folders, *files, "."):
            found = os.lstat(os.path.join(folder, name))
            readable = stat.S_IROTH | (stat.S_IXOTH if stat.S_ISDIR(found.st_mode) else 0)
            if stat.S_ISLNK(found.st_mode):
                readable = 0
            elif found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
                wrong.append(os.path.join(folder, name))
            if found.st_uid != 0 or found.st_mode & readable != readable:
                wrong.append(os.path.join(folder, name))
    assert not wrong
    assert stat.S_IMODE(os.stat(installed).st_mode) == 0o755


def test_the_consoles_user_has_no_shell_and_no_home(installed):
    user = pwd.getpwnam(paths.CONSOLE_USER)
    assert user.pw_uid != 0
    assert user.pw_shell == "/usr/sbin/nologin"
    assert not os.path.exists(user.pw_dir)


def test_sessions_belong_to_the_console_and_policies_to_root(installed):
    for path, owner in ((paths.STATE_DIRECTORY, paths.CONSOLE_USER), (paths.GUARDIAN_DIRECTORY, "root")):
        found = path.stat()
        assert (stat.S_IMODE(found.st_mode), pwd.getpwuid(found.st_uid).pw_name) == (0o700, owner)


def test_neither_the_working_directory_nor_the_environment_reaches_the_program(installed, tmp_path):
    for name in ("fwtop", "numpy", "json"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise SystemExit('taken over')")
    poisoned = {
        **SYSTEM_PATH,
        "PYTHONPATH": str(tmp_path),
        "PYTHONSTARTUP": str(tmp_path / "json/__init__.py"),
    }
    done = run(str(installed), "--version", cwd=tmp_path, env=poisoned)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("fwtop ")


def test_the_program_runs_from_the_copy_that_it_was_started_from(installed):
    show = "import fwtop, sys; from fwtop.model import paths; print(fwtop.__file__, paths.build_id())"
    done = run(str(paths.INSTALLED_PYTHON), "-I", "-c", show, cwd="/")
    place, build = done.stdout.split()
    assert place == f"{paths.INSTALL_DIRECTORY}/app-{build}/fwtop/__init__.py"
    assert (paths.INSTALL_DIRECTORY / f"app-{build}/bpf/record.h").is_file()
    assert (paths.INSTALL_DIRECTORY / f"app-{build}/geoip/origin.mmdb").is_file()


def test_every_module_is_compiled_beforehand(installed):
    package = paths.INSTALLED_APP / "fwtop"
    for source in package.rglob("*.py"):
        assert list((source.parent / "__pycache__").glob(f"{source.stem}.*.pyc")), f"{source} is not compiled"


def test_only_bcc_is_let_in_from_the_distribution(installed):
    show = "import importlib.util as u; print(*(bool(u.find_spec(name)) for name in ('bcc', 'apt', 'pip')))"
    assert run(str(paths.INSTALLED_PYTHON), "-I", "-c", show, cwd="/").stdout == "True False False\n"


def test_doctor_runs_as_the_consoles_user_and_says_what_it_could_not_try(installed):
    done = as_console_user(str(installed), "doctor", "-i", "lo", "--json")
    document = json.loads(done.stdout)
    states = {(item["group"], item["name"]): item["state"] for item in document["checks"]}
    assert states["kernel", "privileges"] == "unknown"
    assert states["kernel", "features"] == "unknown"
    assert states["installation", "program"] == "ok"
    assert done.returncode == 0


def machine_state() -> str:
    commands = (
        ("iptables-save",),
        ("ip6tables-save",),
        ("ipset", "save"),
        ("nft", "list", "ruleset"),
        ("tc", "qdisc", "show", "dev", "lo"),
        ("tc", "filter", "show", "dev", "lo", "ingress"),
        ("ip", "-d", "link", "show", "dev", "lo"),
        ("ip", "netns", "list"),
    )
    lines = [line for argv in commands for line in run(*argv).stdout.splitlines()]
    # Without times of day, and without the namespaces of tests that run beside this one
    return "\n".join(line for line in lines if not re.match(r"#|fwt\d|fwtop-(lab|bench)-", line))


def test_doctor_tries_the_kernels_features_without_a_trace(installed):
    before = machine_state()
    done = run(str(installed), "doctor", "-i", "lo", "--json")
    assert machine_state() == before
    states = {item["name"]: item["state"] for item in json.loads(done.stdout)["checks"]}
    for feature in ("bcc", "BPF at tc ingress", "BPF ring buffer", "drop tracepoint", "BPF at XDP"):
        assert states[feature] == "ok"
    for feature in ("ipset IPv4", "ipset IPv6", "iptables matches", "ip6tables matches", "nftables"):
        assert states[feature] == "ok"
