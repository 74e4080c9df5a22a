"""Rules to a loaded program: generate, compile with bcc, pass the verifier."""

from __future__ import annotations

from fwtop.collect import bpf
from fwtop.collect.compiler import SOURCES, compile_text
from fwtop.collect.xdp_generate import SlotRule, program_text
from fwtop.collect.xdp_maps import SHARED, possible_cpus
from fwtop.model.address import Prefix
from fwtop.model.errors import FwtopError
from fwtop.model.text import safe_text

_TOO_LARGE = 7  # E2BIG: the verifier gave up


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
    generated = program_text(rules, allow)
    text = f'#include "{SOURCES}/xdp.h"\n{generated}\n#include "{SOURCES}/xdp_main.h"\n'
    definitions: dict[str, object] = {f"FWTOP_XDP_{part.upper()}_FD": shared[part] for part in SHARED}
    definitions["FWTOP_CPUS"] = possible_cpus()
    if kind == bpf.TC:
        definitions["FWTOP_TC"] = 1
    code = compile_text(text, definitions, [name])[name]
    try:
        return bpf.load_program(kind, name, code)
    except OSError as error:
        why = "the rules are too many for one program" if error.errno == _TOO_LARGE else safe_text(error)
        raise FwtopError(f"the kernel refused the compiled rules: {why}; nothing was changed") from None
