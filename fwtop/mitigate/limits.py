"""How much of the address space may be blocked in all, so that no list shuts everybody out by mistake."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from fwtop.mitigate.listed import covered, sizes
from fwtop.model.errors import FwtopError
from fwtop.model.percent import percent
from fwtop.model.rule import Kind, Match, Rule
from fwtop.model.text import safe_text

LIMITS_FILE = "/etc/fwtop/guard.toml"
DEFAULT_SHARE = 0.5
_BLOCKING = (Kind.IPSET, Kind.XDP, Kind.NFTABLES, Kind.TC)
_KEY = "max_blocked_share"
# Of IPv6 only 2000::/3 is in use as global unicast (IANA IPv6 address space registry).
_SPACE = {4: 1 << 32, 6: 1 << 125}


@dataclass(frozen=True, slots=True)
class Limits:
    """What the operator's file allows."""

    max_blocked_share: float = DEFAULT_SHARE  # of either family's addresses, 0 to 1
    file: str = LIMITS_FILE


def read_limits(path: Path = Path(LIMITS_FILE)) -> tuple[Limits, tuple[str, ...]]:
    """Read the limits and what is wrong with the file; without a good value the default holds."""
    try:
        data = tomllib.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return Limits(file=str(path)), ()
    except (OSError, ValueError) as error:
        return Limits(file=str(path)), (safe_text(f"{path} is ignored: {error}"),)
    share = data.get(_KEY, DEFAULT_SHARE)
    if type(share) not in (int, float) or not 0 < share <= 1:
        line = f"{path}: {_KEY} must be above 0 and at most 1; {DEFAULT_SHARE} is used"
        return Limits(file=str(path)), (line,)
    unknown = sorted(set(data) - {_KEY})
    warnings = (safe_text(f"{path}: unknown: {', '.join(unknown)}"),) if unknown else ()
    return Limits(float(share), str(path)), warnings


def check_share(rule: Rule, active: Iterable[Rule], limits: Limits) -> None:
    """Raise FwtopError when this rule and the active ones together would block too many addresses."""
    if not _blocks(rule):
        return
    blocking = [rule, *(other for other in active if _blocks(other))]
    for family in rule.match.families:
        lists = [item.match.sources for item in blocking]
        most = limits.max_blocked_share * _SPACE[family]
        if sum(sizes(item, family) for item in lists) <= most:
            continue
        blocked = covered(lists, family)
        if blocked > most:
            raise FwtopError(
                f"with this rule {percent(blocked / _SPACE[family])} of all IPv{family} addresses "
                f"would be blocked, at most {percent(limits.max_blocked_share)} may be "
                f"({_KEY} in {limits.file}); nothing was installed"
            )


def _blocks(rule: Rule) -> bool:
    """Whether a rule drops all that its sources send: a limit or further conditions leave the rest."""
    if rule.kind not in _BLOCKING or rule.limit is not None or not rule.match.sources:
        return False
    return rule.match == Match(sources=rule.match.sources, family=rule.match.family)
