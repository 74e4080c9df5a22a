"""What would help in an attack and isn't set up here, for the calm screen and `fwtop doctor`."""

from __future__ import annotations

from pathlib import Path

from fwtop.alarms.message import FILE as ALARMS_FILE
from fwtop.model.traffic.snapshot import Want

ALLOW = Want("allow list", "a rule might cut you off", "list your addresses in /etc/fwtop/allow")
ALARMS = Want("alarms", "nobody hears of an attack", f"copy docs/alarms.toml to {ALARMS_FILE}")
GEOIP = Want("GeoIP", "no data: countries and networks stay unknown", "make setup")


def wants(*, allow: bool, geoip: bool, alarms: Path = Path(ALARMS_FILE)) -> tuple[Want, ...]:
    """Return what is missing: `allow`: the operator has listed addresses, `geoip`: there are data."""
    there = ((ALLOW, allow), (ALARMS, alarms.exists()), (GEOIP, geoip))
    return tuple(want for want, is_there in there if not is_there)
