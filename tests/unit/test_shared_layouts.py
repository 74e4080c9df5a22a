"""Every number and struct that bpf/ and Python share is the same on both sides."""

from __future__ import annotations

from pathlib import Path

import pytest

from fwtop.lab.traffic import frames, plan
from fwtop.live import mapped
from fwtop.model.traffic.counters import TRAFFIC_CLASSES
from fwtop.model.traffic.packets import Fragment, Hook
from fwtop.observe import messages
from fwtop.xdp import blocks, ipv6_lists, lists, maps
from tests.unit.bpf_headers import BPF, layout_of, values

_CLASSES = {"icmpv6": "ICMP6", "other": "OTHER_IP", "non_ip": "NOT_IP"}  # where C's names differ

OBSERVERS = {
    "FWTOP_DATA": messages.DATA_BYTES,
    "FWTOP_LOCATIONS": messages.LOCATION_PLACES,
    "FWTOP_HOOKS": messages.HOOKS,
    **{f"FWTOP_{hook.name}": hook.value for hook in Hook},
    **{f"FWTOP_{_CLASSES.get(name, name.upper())}": number for number, name in enumerate(TRAFFIC_CLASSES)},
    "FWTOP_CLASSES": len(TRAFFIC_CLASSES),
    "sizeof(struct fwtop_control)": 4 * messages.CONTROL_WORDS,
    "offsetof(struct fwtop_control, enabled)": 4 * mapped._ENABLED,
    "offsetof(struct fwtop_control, counting)": 4 * mapped._COUNTING,
    "offsetof(struct fwtop_scope, watched)": 4 * messages.SCOPE_WORDS,
    **layout_of("struct fwtop_record", messages.record_dtype()),
    "sizeof(struct fwtop_record) ": messages.RECORD_BYTES,
}
COMPILED_RULES = {
    "XDP_MAX_RULES": maps.MAX_RULES,
    "XDP_RINGS": maps.RINGS,
    "XDP_CLASSES": maps.CLASSES,
    "NOT_FRAGMENTED": Fragment.NONE,
    "FIRST_FRAGMENT": Fragment.FIRST,
    "LATER_FRAGMENT": Fragment.LATER,
    "sizeof(struct view)": maps.VIEW_BYTES,
    "offsetof(struct xdp_counters, parse_errors)": maps.PARSE_ERRORS_AT,
    "offsetof(struct xdp_counters, rules) ": maps.RULES_AT,
    **layout_of("struct xdp_counters", maps.counters_dtype()),
    **layout_of("struct xdp_slot", maps.slot_dtype()),
    "sizeof(struct xdp_slot) ": maps.SLOT_BYTES,
    "PORT_WORDS": maps.ALLOW_PORT_WORDS,
    "XDP_PEERS": maps.ALLOW_PEERS,
    "PEER_PROBES": maps.ALLOW_PROBES,
    "sizeof(struct xdp_allow)": maps.ALLOW_BYTES,
    "sizeof(struct xdp_peer)": 8 * maps.PEER_WORDS,
    "XDP_BEHIND": maps.ALLOW_BEHIND,
    "sizeof(struct xdp_behind)": 8 * maps.BEHIND_WORDS,
    "offsetof(struct xdp_allow, behind_ports)": 8 * maps.BEHIND_AT,
    "PENDING * sizeof(struct pending)": maps.PENDING_BYTES,
    "ALL_FIRST": lists._ALL_FIRST,
    "PART_LISTED": lists._PART,
    "ALL_NEXT": lists._ALL_NEXT,
    "ALL_LISTED": blocks.State.ALL,
    "SMALL_LISTED": blocks.State.SMALL,
    "LIST6_FILTER_WORDS": ipv6_lists._FILTER_WORDS,
}
FLOOD = {
    "REWRITE_SPORT": frames.SPORT,
    "REWRITE_DPORT": frames.DPORT,
    "REWRITE_ID": frames.ID,
    "REWRITE_WORD_4": frames.WORD_4,
    "REWRITE_WORD_8": frames.WORD_8,
    "REWRITE_TARGET": frames.TARGET,
    "REWRITE_LETTERS": frames.LETTERS,
    "IS_IPV6": frames.IPV6,
    "CONTINUES": frames.CONTINUES,
    "REWRITE_WINDOW": frames.WINDOW,
    "REWRITE_HALF_8": frames.HALF_8,
    "NO_PSEUDO": frames.NO_PSEUDO,
    **layout_of("struct source", plan.SOURCE),
    **layout_of("struct packet", plan.PACKET),
    **layout_of("struct state", plan.STATE),
}


@pytest.mark.parametrize(
    ("headers", "python"),
    [
        (["counters.h"], OBSERVERS),
        (["xdp_allow.h", "xdp_lists.h", "xdp_limit.h"], COMPILED_RULES),
        (["flood.h"], FLOOD),
    ],
    ids=["observers", "compiled rules", "flood"],
)
def test_constants_and_structs_are_those_of_bpf(
    tmp_path: Path, headers: list[str], python: dict[str, int]
) -> None:
    assert values(tmp_path, headers, python, FRAME_BYTES=frames.FRAME_BYTES) == python


@pytest.mark.parametrize("reasons", [3, 129])
def test_per_cpu_counters_have_one_for_each_drop_reason(tmp_path: Path, reasons: int) -> None:
    counters = messages.counters_dtype(reasons)
    python = layout_of("struct fwtop_counters", counters)
    assert values(tmp_path, ["counters.h"], python, FWTOP_REASONS=reasons) == python
    assert messages.counters_bytes(reasons) == counters.itemsize


def test_the_scope_map_holds_as_many_interfaces_as_it_is_made_for(tmp_path: Path) -> None:
    size = "sizeof(struct fwtop_scope)"
    assert values(tmp_path, ["counters.h"], [size], FWTOP_WATCHED=7) == {size: messages.scope_bytes(7)}


def test_a_member_has_as_many_elements_in_c(tmp_path: Path) -> None:
    """Offsets alone would not notice a shorter array at the end of a struct."""
    counters = maps.counters_dtype()
    assert counters["rules"].shape == (maps.MAX_RULES,)
    python = {
        "sizeof(((struct xdp_counters *)0)->rules)": counters["rules"].itemsize,
        "sizeof(((struct xdp_counters *)0)->classes)": counters["classes"].itemsize,
        "sizeof(((struct fwtop_record *)0)->data)": messages.record_dtype()["data"].itemsize,
    }
    assert values(tmp_path, ["xdp.h", "record.h"], python) == python


def test_the_hash_of_ipv6_lists_is_the_same() -> None:
    assert (
        f"{ipv6_lists._FILTER_FACTOR:#x}u >> {32 - ipv6_lists._FILTER_BITS}"
        in (BPF / "xdp_lists.h").read_text()
    )
