"""The shared fixtures do what they promise."""

from __future__ import annotations

import errno
import socket
import sys

import pytest

pytestmark = pytest.mark.kernel


CONNECT = "import socket, sys; sys.exit(socket.socket(int(sys.argv[1])).connect_ex((sys.argv[2], 9)))"


def test_the_two_hosts_reach_each_other_over_both_families(netns_pair):
    for address, family in (
        (netns_pair.victim.ipv4, socket.AF_INET),
        (netns_pair.victim.ipv6, socket.AF_INET6),
    ):
        argv = [sys.executable, "-I", "-c", CONNECT, str(int(family)), address]
        done = netns_pair.attacker.run(*argv, check=False)
        assert done.returncode == errno.ECONNREFUSED, "a host that is reached refuses a closed port"


def test_polling_returns_the_first_true_result(poll_until):
    results = iter([0, None, "ready"])
    assert poll_until(lambda: next(results), 1.0) == "ready"


def test_polling_fails_after_the_deadline(poll_until):
    with pytest.raises(pytest.fail.Exception, match="not true within"):
        poll_until(lambda: False, 0.02)
