"""Properties of the running kernel that bpf/*.c is compiled with: member offsets and drop reason numbers."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from fwtop.compile import cache
from fwtop.kernel.btf import Btf
from fwtop.model.wire import of_plain, plain

REASON_PREFIX = "SKB_DROP_REASON_"
_VERSION = 3  # of the cached value: incremented when Kernel changes
_TRACEPOINT = "kfree_skb"
_NONE = 1 << 30  # no reason has this number
_REASONS = ("CPU_BACKLOG", "NETFILTER_DROP", "IP_RPFILTER")  # distinguished by the programs
_OFFSETS = {
    "OFF_HEAD": "sk_buff.head",
    "OFF_DATA": "sk_buff.data",
    "OFF_END": "sk_buff.end",
    "OFF_LEN": "sk_buff.len",
    "OFF_DATA_LEN": "sk_buff.data_len",
    "OFF_DEV": "sk_buff.dev",
    "OFF_CB": "sk_buff.cb",
    "OFF_SKB_IIF": "sk_buff.skb_iif",
    "OFF_PROTOCOL": "sk_buff.protocol",
    "OFF_REFDST": "sk_buff._skb_refdst",
    "OFF_MAC_HEADER": "sk_buff.mac_header",
    "OFF_NETWORK_HEADER": "sk_buff.network_header",
    "OFF_TRANSPORT_HEADER": "sk_buff.transport_header",
    "OFF_GSO_SEGS": "skb_shared_info.gso_segs",
    "OFF_DST_DEV": "dst_entry.dev",
    "OFF_DEV_NET": "net_device.nd_net.net",
    "OFF_DEV_IFINDEX": "net_device.ifindex",
    "OFF_NET_INUM": "net.ns.inum",
    "OFF_SOCK_NET": "sock.__sk_common.skc_net.net",
    "OFF_STATE_HOOK": "nf_hook_state.hook",
    "OFF_STATE_PF": "nf_hook_state.pf",
    "OFF_STATE_IN": "nf_hook_state.in",
    "OFF_STATE_OUT": "nf_hook_state.out",
    "OFF_FRAG_MAX_V4": "inet_skb_parm.frag_max_size",
    "OFF_FRAG_MAX_V6": "inet6_skb_parm.frag_max_size",
}


class Kernel(Struct, frozen=True):
    """The running kernel as its BTF describes it."""

    definitions: dict[str, Any]
    reasons: dict[int, str]  # without SKB_DROP_REASON_; empty before Linux 5.17
    tracepoint: int  # BTF id of kfree_skb's type
    counts_connections: bool  # conntrack entries can be read

    @property
    def reason_slots(self) -> int:
        """Number of drop counters."""
        return max(self.reasons, default=2) + 1

    @staticmethod
    def read() -> Kernel:
        """Read the running kernel's BTF, or the cached result of an earlier start.

        Raises FwtopError (code 3) if the kernel has no BTF or lacks a member.
        """
        key = [_OFFSETS, _VERSION]
        cached = cache.load("kernel", key)
        if isinstance(cached, dict):
            return of_plain(Kernel, cached)
        kernel = Kernel._look_up(Btf.read())
        cache.store("kernel", key, plain(kernel))
        return kernel

    @staticmethod
    def _look_up(types: Btf) -> Kernel:
        names = types.enum("skb_drop_reason")
        # Numbers from 65536 on are subsystems' own (mac80211, openvswitch)
        reasons = {
            number: name.removeprefix(REASON_PREFIX) for number, name in names.items() if number < 1 << 16
        }
        conntrack = _conntrack(types)
        return Kernel(
            definitions={
                **{name: types.offset(path) for name, path in _OFFSETS.items()},
                **_drop_arguments(types, reasons),
                **conntrack,
            },
            reasons=reasons,
            tracepoint=types.typedef(f"btf_trace_{_TRACEPOINT}") or 0,
            counts_connections=bool(conntrack),
        )


def _drop_arguments(types: Btf, reasons: dict[int, str]) -> dict[str, Any]:
    numbers = {name: number for number, name in reasons.items()}
    arguments = types.arguments(_TRACEPOINT)
    definitions: dict[str, Any] = {
        "FWTOP_NOT_SPECIFIED": numbers.get("NOT_SPECIFIED", 2),
        **{f"FWTOP_{name}": numbers.get(name, _NONE) for name in _REASONS},
    }
    if arguments >= 3:
        definitions["FWTOP_HAS_REASON"] = 1
    if arguments >= 4:
        definitions["FWTOP_HAS_RX_SK"] = 1
    return definitions


def _conntrack(types: Btf) -> dict[str, Any]:
    """Return the offsets of conntrack entries, {} if conntrack is a module, whose types vmlinux lacks."""
    entry, status = types.find_offset("sk_buff._nfct"), types.find_offset("nf_conn.status")
    return {} if entry is None or status is None else {"OFF_NFCT": entry, "OFF_CT_STATUS": status}
