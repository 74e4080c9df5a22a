"""Change kernel settings for a while: no sets and no chain lines, the settings themselves."""

from __future__ import annotations

from fwtop.model.rule import Kind, Rule, Setting
from fwtop.rules.kind import KernelObjects, Layer, Machine, RuleKind, Surroundings

_NO_CLOCK = (
    "sysctls have no clock in the kernel: fwtop's guardian gives the old value back when the time is over or "
    "the rule is undone; if it is killed or hangs, a shell that it left waiting sees to it"
)
_ENTRY_BYTES = 320  # of a tracked connection: struct nf_conn and its extensions, Linux 6.x
_MUCH_MEMORY = 0.25  # of the machine's


def build(rule: Rule, around: Surroundings) -> KernelObjects:
    """Return the settings and what is to be known about them."""
    return KernelObjects((), (), _notes(rule.settings, around.machine), settings=rule.settings)


def _notes(settings: tuple[Setting, ...], machine: Machine) -> tuple[str, ...]:
    """Return notes for the preview of a rule with these settings."""
    found = [_NO_CLOCK]
    for item in settings:
        if item.name == "net.netfilter.nf_conntrack_max":
            size, total = item.value * _ENTRY_BYTES, machine.memory_bytes()
            found.append(f"a full table of {item.value:,} connections takes about {size >> 20:,} MiB")
            if total and size > total * _MUCH_MEMORY:
                found.append(f"that is {100 * size / total:.0f} % of this machine's memory")
    return tuple(found)


def _phrase(rule: Rule, _: str) -> str:
    return "set " + ", ".join(f"{item.name}={item.value}" for item in rule.settings)


def _brief(rule: Rule, _: str) -> str:
    """Name one setting without where it is; count several."""
    names, values = [item.name for item in rule.settings], {item.value for item in rule.settings}
    if len(names) == 1:
        return f"set {names[0].rpartition('.')[2].removeprefix('nf_').replace('_', ' ')} to {values.pop():,}"
    timeouts = len(values) == 1 and all("_timeout" in name for name in names)
    return (
        f"shorten {len(names)} timeouts to {values.pop()} s" if timeouts else f"change {len(names)} sysctls"
    )


def _words(rule: Rule) -> list[str]:
    return ["sysctl", *(f"{item.name}={item.value}" for item in rule.settings)]


KIND = RuleKind(
    Kind.SYSCTL, Layer.NOWHERE, build, _words,
    own={"settings": "a sysctl rule's"}, phrase=_phrase, brief=_brief,
    fixed="a sysctl matches no packets", drops_nothing=True, is_part=True, has_no_clock=True,
    verbs=("sysctl",), uncounted=lambda _: "a sysctl matches no packets that could be counted",
    not_measured="it drops nothing", evaded="evaded by: a faster flood",
)  # fmt: skip
