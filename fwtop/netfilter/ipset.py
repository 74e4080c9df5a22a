"""ipset over nfnetlink: sizes, elements, flushing, destroying, and adding a million prefixes.

Messages with thousands of elements are built by array arithmetic: a million prefixes take 0.5 s, against
2.9 s through `ipset restore`, which parses each line as text. Sources: linux/netfilter/ipset/ip_set.h;
ip_set_core.c, call_ad: elements of one IPSET_ATTR_ADT are added in order until one fails.
"""

from __future__ import annotations

import contextlib
import errno
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec import Struct

from fwtop.kernel import netlink
from fwtop.kernel.netlink import NETFILTER_HEADER_BYTES, NETLINK_NETFILTER, attribute, attributes, c_string
from fwtop.kernel.programs import run
from fwtop.model.addresses.address import Prefix, of_pairs, of_ports
from fwtop.model.errors import FwtopError
from fwtop.model.traffic.protocols import NUMBERS

if TYPE_CHECKING:  # a guardian without a long list doesn't load numpy
    from numpy.typing import NDArray

    from fwtop.model.addresses.list_rows import Rows

_SUBSYSTEM = 6 << 8  # NFNL_SUBSYS_IPSET
_DESTROY, _FLUSH, _SWAP, _LIST, _ADD, _DEL, _TEST = (
    _SUBSYSTEM | number for number in (3, 4, 6, 7, 9, 10, 11)
)
_BY_NAME = _SUBSYSTEM | 14  # IPSET_CMD_GET_BYNAME
_TYPENAME, _FAMILY, _MAX_ELEMENTS, _SIZE, _MEMORY = 3, 5, 19, 23, 26  # the latter three in _DATA
_FAMILY_NAMES = {2: "ip", 10: "ip6"}  # NFPROTO_*
_PROTOCOL, _SETNAME, _SETNAME2, _FLAGS, _DATA, _ADT, _LINENO = 1, 2, 3, 6, 7, 8, 9  # IPSET_ATTR_*
_INDEX = 11  # IPSET_ATTR_INDEX, since protocol 7 (Linux 4.20)
_IP, _CIDR, _PORT, _TIMEOUT, _PROTO, _ELEMENT_FLAGS, _ELEMENTS = 1, 3, 4, 6, 7, 8, 24  # in _DATA
_IP2, _CIDR2 = 20, 21
_BYTES, _PACKETS = 24, 25  # of an element
_WITH_COUNTERS = 1 << 3  # IPSET_FLAG_WITH_COUNTERS
_VERSION = attribute(_PROTOCOL, b"\7")  # IPSET_PROTOCOL
_NAME_ONLY, _HEADER_ONLY = 2, 4  # IPSET_FLAG_LIST_SETNAME, IPSET_FLAG_LIST_HEADER
_ADDRESS_BYTES = {4: 4, 6: 16}
_MAX_BATCH_BYTES = 64_000  # of elements in one attribute
_ADD_SECONDS = 30.0
_RESTORE_SECONDS = 30.0  # longer lists go through netlink; keep and undo wait behind this
_FIRST_OWN_ERROR = 4096  # IPSET_ERR_PRIVATE: codes from here on are ipset's, not errno's
_BUSY = 4101  # IPSET_ERR_BUSY
_NOT_THERE = 4103  # IPSET_ERR_EXIST
NOMATCH = b"!"
_HASH_FULL = 4352  # IPSET_ERR_HASH_FULL


class Element(NamedTuple):
    """An element of a set of type hash:net, hash:net,net, hash:ip, hash:ip,port or hash:ip,port,ip.

    What its type lacks is 0 or empty.
    """

    address: bytes
    length: int = 0  # of a prefix
    protocol: int = 0
    port: int = 0
    flags: int = 0  # `nomatch` is one
    second: bytes = b""  # the other address
    second_length: int = -1  # of a prefix; -1: it is none


class Entry(NamedTuple):
    """An element with what it has counted, and the seconds until it ends; 0 where it has no such thing."""

    element: Element
    seconds: int
    packets: int
    bytes: int

    @property
    def prefix(self) -> Prefix:
        """Its address, or network."""
        return _prefix(self.element.address, self.element.length or 8 * len(self.element.address))

    @property
    def to(self) -> Prefix | None:
        """The other network of a pair, None where there is none."""
        length = self.element.second_length
        return _prefix(self.element.second, length) if length >= 0 else None

    @property
    def text(self) -> str:
        """It as ipset(8) lists it."""
        if self.to is not None:
            return f"{self.prefix},{self.to}"
        port = self.element.port
        return f"{self.prefix},{self._protocol}:{port}" if port else str(self.prefix)

    @property
    def _protocol(self) -> str:
        return next((name for name, number in NUMBERS.items() if number == self.element.protocol), "")

    @property
    def listed(self) -> str:
        """It as named lists write it."""
        if not self.element.port:
            return self.text
        shown = self.prefix if self.prefix.family == 4 else f"[{self.prefix}]"
        return f"{shown}:{self.element.port}/{self._protocol}"


def _prefix(address: bytes, length: int) -> Prefix:
    return Prefix(4 if len(address) == 4 else 6, int.from_bytes(address, "big"), length)


class Header(NamedTuple):
    """What a set is, without its elements."""

    name: str
    type: str
    family: str  # ip, ip6; "" for bitmaps and lists
    entries: int  # expired ones count until the kernel's next garbage collection
    size: int | None  # the most elements it takes, None: as its type allows
    memory: int  # bytes
    counted: bool  # its elements have counters


def headers() -> list[Header]:
    """Return the header of each set, none where the kernel has no ipset; raises FwtopError.

    The kernel counts all elements for it, 30 ms for each million: `names` and `header` need not.
    """
    return [_header(parts) for parts in _each_set(_HEADER_ONLY)]


def names() -> set[str]:
    """Return the names of all sets, none where the kernel has no ipset; raises FwtopError."""
    return {c_string(parts[_SETNAME]) for parts in _each_set(_NAME_ONLY)}


def _each_set(flags: int) -> list[dict[int, bytes]]:
    with _failing("ipset can't be read"):
        try:
            return [parts for parts in _listed(_asking(flags)) if _SETNAME in parts]
        except OSError as error:
            if error.errno == errno.EINVAL:  # nfnetlink.c: nobody answers for this subsystem
                return []
            raise


def header(name: str) -> Header | None:
    """Return the header of a set, None if it is not there; raises FwtopError."""
    with _failing(f"set {name} can't be read"):
        try:
            request = _asking(_HEADER_ONLY) + attribute(_SETNAME, name.encode() + b"\0")
            return next(map(_header, _listed(request)), None)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.EINVAL):
                return None
            raise


def sizes_of(wanted: Iterable[str]) -> dict[str, int]:
    """Return the number of elements of those of some sets that are there; raises FwtopError."""
    return {name: found.entries for name in wanted if (found := header(name)) is not None}


def numbers_of(wanted: Iterable[str]) -> dict[int, str]:
    """Return, by number, those of some sets that are there (since Linux 4.20); raises FwtopError."""
    found: dict[int, str] = {}
    with _failing("ipset can't be read"), netlink.open_socket(NETLINK_NETFILTER) as channel:
        for name in wanted:
            with contextlib.suppress(FileNotFoundError):
                body = netlink.ask(channel, _BY_NAME, _named(name))
                found[_number(dict(attributes(body, NETFILTER_HEADER_BYTES)).get(_INDEX))] = name
    return found


def _asking(flags: int) -> bytes:
    return netlink.netfilter_header() + _VERSION + attribute(_FLAGS, struct.pack(">I", flags))


def _listed(request: bytes) -> Iterator[dict[int, bytes]]:
    for body in netlink.dump(NETLINK_NETFILTER, _LIST, request):
        yield dict(attributes(body, NETFILTER_HEADER_BYTES))


def _header(parts: dict[int, bytes]) -> Header:
    data = dict(attributes(parts.get(_DATA, b"")))
    most = data.get(_MAX_ELEMENTS) or data.get(_SIZE)
    name, kind = c_string(parts.get(_SETNAME, b"")), c_string(parts.get(_TYPENAME, b""))
    family = _FAMILY_NAMES.get(_number(parts.get(_FAMILY)), "")
    entries, memory = _number(data.get(_ELEMENTS)), _number(data.get(_MEMORY))
    counted = bool(_number(data.get(_ELEMENT_FLAGS)) & _WITH_COUNTERS)
    return Header(name, kind, family, entries, _number(most) or None, memory, counted)


def _number(value: bytes | None) -> int:
    return int.from_bytes(value or b"", "big")


def saved() -> str:
    """Return all sets with their elements as `restore` reads them; raises FwtopError."""
    return run(["ipset", "save"], timeout=_RESTORE_SECONDS)


def restore(text: str) -> None:
    """Run `ipset restore`; existing sets and elements are no error. Raises FwtopError."""
    if text:
        run(["ipset", "-exist", "restore"], text=text, timeout=_RESTORE_SECONDS)


@contextlib.contextmanager
def _failing(what: str) -> Iterator[None]:
    """Say what failed, and the kernel's reason."""
    try:
        yield
    except OSError as error:
        raise FwtopError(f"{what}: {_reason(error)}") from None


def elements(name: str) -> set[Element]:
    """Return the elements of a small set; raises FwtopError."""
    return {entry.element for entry in entries(name)}


def entries(name: str) -> Iterator[Entry]:
    """Yield the elements of a set with their counters and times; raises FwtopError."""
    with _failing(f"set {name} can't be read"):
        for parts in _listed(_named(name)):
            for _, item in attributes(parts.get(_ADT, b"")):
                data = dict(attributes(item))
                counts = (_number(data.get(kind)) for kind in (_TIMEOUT, _PACKETS, _BYTES))
                yield Entry(_element(data), *counts)


def _element(data: dict[int, bytes]) -> Element:
    address, second = (
        next((value for _, value in attributes(data.get(kind, b""))), b"") for kind in (_IP, _IP2)
    )
    length, protocol, port, flags = (
        _number(data.get(kind)) for kind in (_CIDR, _PROTO, _PORT, _ELEMENT_FLAGS)
    )
    second_length = _number(data[_CIDR2]) if _CIDR2 in data else -1
    return Element(address, length, protocol, port, flags, second, second_length)


def keys(name: str, family: int, like: Sequence[Prefix] = ()) -> set[bytes]:
    """Return the elements of a hash:net set: address and length, with NOMATCH behind what is none.

    Of a set of what is `like` these, with ports: address, port, length and protocol; of pairs: both addresses
    and both lengths. Counters and timeouts are left out: ten times as fast as `elements`. Raises FwtopError.
    """
    width = _ADDRESS_BYTES[family]
    first = 12  # headers of the element, of its address, and of the address in that
    more = first + width
    places: tuple[tuple[int, int], ...]
    if of_pairs(like):
        second = more + 8
        ends = second + width  # each further attribute takes 8 bytes
        places, flags = ((first, width), (second, width), (ends + 4, 1), (ends + 12, 1)), ends + 16
    elif of_ports(like):
        places, flags = ((first, width), (more + 4, 2), (more + 12, 1), (more + 20, 1)), more + 24
    else:
        places, flags = ((first, width), (more + 4, 1)), more + 8
    slices = [slice(at, at + size) for at, size in places]
    found: set[bytes] = set()
    with _failing(f"set {name} can't be read"):
        for parts in _listed(_named(name)):
            listed, at = parts.get(_ADT, b""), 0
            while at < len(listed):
                size = listed[at] | listed[at + 1] << 8
                element = listed[at : at + size]
                key = b"".join([element[part] for part in slices])
                if size > flags and element[flags + 2] == _ELEMENT_FLAGS:
                    key += NOMATCH
                found.add(key)
                at += size + 3 & ~3
    return found


def holds(name: str, family: int, prefixes: Rows, start: int, stop: int) -> bool:
    """Return whether a set holds all of a slice of prefixes, none as `nomatch`; raises FwtopError.

    The kernel answers only for what it lacks, and for the last.
    """
    encode, size, _ = _encoder(family, prefixes)
    named = _named(name)
    head = netlink.message(_TEST, netlink.NLM_F_REQUEST, named + bytes(size))[:-size]
    per_call = _MAX_BATCH_BYTES // (len(head) + size)
    try:
        with netlink.open_socket(NETLINK_NETFILTER, _ADD_SECONDS) as channel:
            for at in range(start, stop, per_call):
                items = encode(at, min(at + per_call, stop))
                asked = b"".join(head + items[i : i + size] for i in range(0, len(items), size))
                last = netlink.message(
                    _TEST, netlink.NLM_F_REQUEST | netlink.NLM_F_ACK, named + items[-size:]
                )
                netlink.send_encoded(channel, asked + last)
    except OSError as error:
        if error.errno in (_NOT_THERE, errno.ENOBUFS):  # the latter: more answers than the socket takes
            return False
        raise FwtopError(f"set {name} can't be read: {_reason(error)}") from None
    return True


def flush_set(name: str) -> None:
    """Remove all elements of a set, so that no packet matches it; raises FwtopError."""
    with _failing(f"set {name} can't be flushed"):
        netlink.request(NETLINK_NETFILTER, _FLUSH, _named(name))


def destroy_set(name: str) -> None:
    """Destroy a set if it exists; raises FwtopError while it is referenced."""
    with _failing(f"set {name} can't be destroyed"), contextlib.suppress(FileNotFoundError):
        netlink.request(NETLINK_NETFILTER, _DESTROY, _named(name))


class Edit(Struct, frozen=True):
    """Entries of one family, as kernels look them up, that come into a set, and others that go."""

    name: str
    family: int
    added: Rows
    removed: Rows


def change_sets(edits: Sequence[Edit]) -> None:
    """Change existing sets of lists in a single system call; raises FwtopError.

    The kernel carries all of it out before the call returns, so no signal can come in between. What one
    message fails of does not undo the others.
    """
    requests = [
        (kind, body)
        for kind in (_ADD, _DEL)  # in this order: never less than what stays
        for edit in edits
        for body in _element_messages(edit.name, edit.family, edit.added if kind == _ADD else edit.removed)
    ]
    _send_all(requests, "the sets could not be changed")


def switch_sets(wanted: Sequence[tuple[str, Sequence[Prefix], int]]) -> None:
    """Give hash:net sets these few elements with a timeout, or none, in one system call; raises FwtopError.

    Those that get some come first.
    """
    requests = [
        (_ADD, _named(name) + netlink.nested(_ADT, elements) + attribute(_LINENO, bytes(4)))
        for name, prefixes, seconds in wanted
        if (elements := b"".join(_timed_element(prefix, seconds) for prefix in prefixes))
    ]
    requests += [(_FLUSH, _named(name)) for name, prefixes, _ in wanted if not prefixes]
    _send_all(requests, "the enable sets could not be switched")


def _timed_element(prefix: Prefix, seconds: int) -> bytes:
    packed = prefix.value.to_bytes(_ADDRESS_BYTES[prefix.family], "big")
    address = attribute((1 if prefix.family == 4 else 2) | netlink.NLA_F_NET_BYTEORDER, packed)
    timeout = attribute(_TIMEOUT | netlink.NLA_F_NET_BYTEORDER, struct.pack(">I", seconds))
    length = attribute(_CIDR, bytes([prefix.length]))
    return netlink.nested(_DATA, netlink.nested(_IP, address), length, timeout)


def swap_sets(pairs: Sequence[tuple[str, str]]) -> None:
    """Exchange the contents of pairs of sets in a single system call; raises FwtopError."""
    requests = [(_SWAP, _named(one) + attribute(_SETNAME2, two.encode() + b"\0")) for one, two in pairs]
    _send_all(requests, "sets could not be swapped")


def _element_messages(name: str, family: int, prefixes: Rows) -> Iterator[bytes]:
    encode, size, count = _encoder(family, prefixes)
    batch = _MAX_BATCH_BYTES // size
    for start in range(0, count, batch):
        nested = netlink.nested(_ADT, encode(start, min(start + batch, count)))
        yield _named(name) + nested + attribute(_LINENO, bytes(4))


def _send_all(requests: Sequence[tuple[int, bytes]], what: str) -> None:
    with _failing(what), netlink.open_socket(NETLINK_NETFILTER, _ADD_SECONDS) as channel:
        netlink.send_all(channel, requests)


def add_prefixes(
    name: str, family: int, prefixes: Rows, between_batches: Callable[[], None] = lambda: None
) -> None:
    """Add prefixes of one family to a list's or rule's existing set, in batches of some thousands.

    Raises FwtopError with the kernel's reason.
    """
    try:
        with netlink.open_socket(NETLINK_NETFILTER, _ADD_SECONDS) as channel:
            for body in _element_messages(name, family, prefixes):
                netlink.send(channel, _ADD, body)
                between_batches()
    except OSError as error:  # ENOBUFS: out of memory
        raise FwtopError(f"set {name} could not be filled: {_reason(error)}; nothing was installed") from None


def _encoder(family: int, entries: Rows) -> tuple[Callable[[int, int], bytes], int, int]:
    """Return a function that encodes a slice of entries, the size of one, and how many there are.

    Each is an IPSET_ATTR_DATA with its address and length, of single ports port and protocol, too, of pairs
    both networks.
    """
    import numpy as np

    from fwtop.model.addresses.prefix_rows import PrefixRows

    width = _ADDRESS_BYTES[family]
    address = attribute((1 if family == 4 else 2) | netlink.NLA_F_NET_BYTEORDER, bytes(width))
    parts = [netlink.nested(_IP, address), attribute(_CIDR, b"\0")]
    columns: dict[
        int, NDArray[Any]
    ]  # by place from the end: each attribute behind the addresses takes 8 bytes
    if isinstance(entries, PrefixRows):
        found: tuple[NDArray[Any], ...] = entries.columns4() if family == 4 else entries.columns6()
        *words, lengths = found
        size = width // len(words)
        columns = {-4: lengths, **{-8 - width + at * size: word for at, word in enumerate(words)}}
    elif of_pairs(entries):
        rows = entries.rows
        parts[1:1] = [netlink.nested(_IP2, address)]
        parts.append(attribute(_CIDR2, b"\0"))
        columns = {-12: rows["length"], -4: rows["to_length"]}
        columns[-16 - width] = entries.bytes_of("to")[:, 16 - width :]
        columns[-24 - 2 * width] = entries.bytes_of("address")[:, 16 - width :]
    else:
        rows = entries.rows
        parts.append(attribute(_PORT | netlink.NLA_F_NET_BYTEORDER, bytes(2)))
        parts.append(attribute(_PROTO, b"\0"))
        columns = {-20: rows["length"], -12: rows["low"], -4: rows["protocol"]}
        columns[-24 - width] = entries.bytes_of("address")[:, 16 - width :]
    template = np.frombuffer(netlink.nested(_DATA, *parts), np.uint8)

    def encode(start: int, stop: int) -> bytes:
        made = np.tile(template, (stop - start, 1))
        for at, column in columns.items():
            part = column[start:stop]
            part = part.astype(part.dtype.newbyteorder(">")).view(np.uint8).reshape(stop - start, -1)
            made[:, len(template) + at :][:, : part.shape[1]] = part
        return made.tobytes()

    return encode, len(template), len(columns[-4])


def _named(name: str) -> bytes:
    return netlink.netfilter_header() + _VERSION + attribute(_SETNAME, name.encode() + b"\0")


def _reason(error: OSError) -> str:
    if error.errno == _HASH_FULL:
        return "the set is full"
    if error.errno == _BUSY:
        return "a rule refers to it"
    if error.errno is not None and error.errno >= _FIRST_OWN_ERROR:
        return f"ipset error {error.errno}"
    return error.strerror or str(error)
