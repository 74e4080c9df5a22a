"""Turn rules into a loaded program: generate C, compile it with bcc, load it."""

from __future__ import annotations

import base64
import errno

from msgspec.structs import replace

from fwtop.compile import cache
from fwtop.compile.compiler import SOURCES, compile_text, relocate
from fwtop.kernel import bpf
from fwtop.model.addresses.address import Prefix
from fwtop.model.errors import FwtopError
from fwtop.model.text import safe_text
from fwtop.xdp.generate import program_text
from fwtop.xdp.ipv6_lists import with_placeholders
from fwtop.xdp.maps import SHARED, possible_cpus
from fwtop.xdp.slot_rule import AnyList, List6, SlotRule

_CALLED = ("xdp_allow.h", "xdp_lists.h", "xdp_limit.h")  # by the rules
_HEADERS = ("kernel.h", "record.h", "xdp.h", *_CALLED, "xdp_parse.h", "xdp_plain.h", "xdp_main.h")
_CACHED = 64  # compiled rule sets
_MAX_FAST_PREFIXES = 1000  # in the code of all rules: with more, the fast path takes over 10 s to compile
_TABLE_PREFIXES = 10  # that the lookup in one IPv6 table equals in code size
_TOO_LARGE = (errno.E2BIG, errno.EFAULT)  # the verifier gave up: too many instructions or branches
_FAR_JUMP = "jump out of range"  # check_subprogs in kernel/bpf/verifier.c
_REFUSED = "the kernel refused the compiled rules: {}; nothing was changed"


def build_xdp(rules: list[SlotRule], allow: tuple[Prefix, ...], shared: dict[str, int]) -> int:
    """Return the descriptor of a loaded XDP program; raises FwtopError."""
    return _build(rules, allow, shared, bpf.XDP_FRAGMENTS, "fwtop_xdp")


def build_tc(rules: list[SlotRule], allow: tuple[Prefix, ...], shared: dict[str, int]) -> int:
    """Return the descriptor of the same rules as a program for tc ingress; raises FwtopError."""
    return _build(rules, allow, shared, bpf.TC, "fwtop_tc")


def _build(
    rules: list[SlotRule],
    allow: tuple[Prefix, ...],
    shared: dict[str, int],
    kind: bpf.ProgramType,
    name: str,
) -> int:
    maps = dict(enumerate((shared[part] for part in SHARED), 1))
    numbered = [_numbered(rule, maps) for rule in rules]
    definitions = _definitions(kind)
    for plain in variants(numbered):
        code = relocate(_compiled(program_text(numbered, allow, plain=plain), definitions, name), maps)
        try:
            return bpf.load_program(kind, name, code)
        except OSError as error:
            if not is_too_large(error):
                raise FwtopError(_REFUSED.format(safe_text(error))) from None
    raise FwtopError(_REFUSED.format("these are too many rules for one program"))


def precompile(rules: list[SlotRule], allow: tuple[Prefix, ...], *, for_tc: bool) -> None:
    """Compile rules into the cache, so that installing them is quick; raises FwtopError."""
    maps = dict.fromkeys(range(1, len(SHARED) + 1), 0)
    numbered = [_numbered(rule, maps) for rule in rules]
    kind, name = (bpf.TC, "fwtop_tc") if for_tc else (bpf.XDP_FRAGMENTS, "fwtop_xdp")
    _compiled(program_text(numbered, allow, plain=variants(numbered)[0]), _definitions(kind), name)


def is_too_large(error: OSError) -> bool:
    """Return whether the program was too long for the verifier; a jump reaches 32,767 instructions."""
    return error.errno in _TOO_LARGE or (error.errno == errno.EINVAL and _FAR_JUMP in str(error))


def variants(rules: list[SlotRule]) -> tuple[bool, ...]:
    """Return whether to compile the fast path for plain packets, in order of preference.

    Without it, compiling takes a quarter of the time. Long lists add no code, but for one lookup for each
    IPv6 prefix length in use.
    """
    tables = sum(
        len(found.tables) for rule in rules for found in rule.lists.values() if isinstance(found, List6)
    )
    prefixes = sum(
        len(found)
        for rule in rules
        for side, found in (("src", rule.match.sources), ("dst", rule.match.destinations))
        if all(listed != side for listed, _ in rule.lists)
    )
    return (True, False) if prefixes + _TABLE_PREFIXES * tables <= _MAX_FAST_PREFIXES else (False,)


def _definitions(kind: bpf.ProgramType) -> dict[str, object]:
    found: dict[str, object] = {
        f"FWTOP_XDP_{part.upper()}_FD": number for number, part in enumerate(SHARED, 1)
    }
    found["FWTOP_CPUS"] = possible_cpus()
    return found | {"FWTOP_TC": 1} if kind == bpf.TC else found


def _numbered(rule: SlotRule, maps: dict[int, int]) -> SlotRule:
    """Replace a rule's maps and their sizes by placeholders, so that other lists give the same code.

    Adds the values of the placeholders to `maps`.
    """

    def number(value: int) -> int:
        maps[len(maps) + 1] = value
        return len(maps)

    lists: dict[tuple[str, int], AnyList] = {}
    for key, found in rule.lists.items():
        numbered = replace(found, **{name: number(getattr(found, name)) for name in found.MAPS + found.SIZES})
        if isinstance(numbered, List6):
            tables = tuple(with_placeholders(table, number) for table in numbered.tables)
            numbered = replace(numbered, tables=tables)
        lists[key] = numbered
    return replace(
        rule,
        lists=lists,
        buckets=number(rule.buckets) if rule.limit is not None else 0,
        hits=number(rule.hits) if rule.counted else 0,
        counted=number(rule.counted) if rule.counted else 0,
    )


def _compiled(generated: str, definitions: dict[str, object], name: str) -> bytes:
    """Compile, or take the code from the cache, which lasts until reboot."""
    headers = [(SOURCES / header).read_text() for header in _HEADERS]
    key = [generated, definitions, name, headers]
    kept = cache.load("rules", key)
    if isinstance(kept, str):
        return base64.b64decode(kept)
    before, after = (
        "".join(f'#include "{SOURCES}/{header}"\n' for header in headers)
        for headers in (_CALLED, ("xdp_main.h",))
    )
    code = compile_text(f"{before}{generated}\n{after}", definitions, [name])[name]
    cache.store("rules", key, base64.b64encode(code).decode())
    cache.prune("rules", _CACHED)
    return code
