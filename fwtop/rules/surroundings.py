"""What a rule's kernel objects depend on beside the rule: who knows hands it in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from fwtop.model.addresses.address import Prefix


class Machine:
    """A machine of which nothing is known, as where a policy is written for others."""

    def memory_bytes(self) -> int:
        """Return its memory; 0: unknown."""
        return 0

    def tcp_peers(self, port: int) -> Sequence[tuple[Prefix, int]]:
        """Return address and port of those who have a connection to a local port now."""
        del port
        return ()

    def udp_peers(self, family: int, port: int, most: int) -> Sequence[tuple[str, int]]:
        """Return address and port of those who talk with a local UDP service, at most `most`."""
        del family, port, most
        return ()

    def mtu(self) -> int:
        """Return the smallest MTU of the interfaces that receive, bytes."""
        return 1500

    def window_scale(self) -> int:
        """Return the scale of TCP windows that a listener announces."""
        return 7  # of Linux with its defaults

    def without_gro(self) -> Sequence[str]:
        """Return the interfaces whose packets reach the stack without GRO, which verifies checksums."""
        return ()

    def takes_stamps(self) -> bool:
        """Return whether the SYN proxy can pass time stamps through."""
        return True


class Surroundings(Struct, frozen=True):
    """The allow-list, named lists, other rules and the machine; by default there are none."""

    exceptions: tuple[Prefix, ...] = ()  # prefixes of the allow-list that this rule spares
    known: tuple[Prefix, ...] = ()  # all prefixes of the allow-list, in whatever role
    lists: Mapping[str, Sequence[Prefix]] = {}  # of a protected port: what its access lists hold
    higher: frozenset[str] = frozenset()  # of a protected port: the rules that decide before it
    machine: Machine = Machine()


NONE = Surroundings()
