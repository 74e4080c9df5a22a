"""Databases in the format of MaxMind, as others publish them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from mmdb_writer import MMDBWriter, TreeWriter
from netaddr import IPNetwork, IPSet

BUILT = 1_700_000_000


class Sized(TreeWriter):
    """Writes records of another size than the smallest that fits."""

    size = 24

    def _adjust_record_size(self) -> None:
        super()._adjust_record_size()
        self.record_size, self.data_offset = self.size, self.size / 4 * self._node_counter


def write_records(
    path: Path,
    records: Mapping[str, dict[str, object]],
    *,
    kind: str = "Test",
    built: int = BUILT,
    record_size: int = 24,
) -> Path:
    """Write records by network; the more specific network wins."""
    made = MMDBWriter(6, kind, ["en"], "a test", ipv4_compatible=True, int_type="u32")
    for network in sorted(map(IPNetwork, records), key=lambda one: one.prefixlen):
        made.insert_network(IPSet([network]), records[str(network)])
    tree = Sized(made.tree, made._build_meta() | {"build_epoch": built}, "u32")
    tree.size = record_size
    tree.write(str(path))
    return path


def record_of(country: str, asn: int, name: str) -> dict[str, object]:
    """A record with the names of GeoLite2."""
    record: dict[str, object] = {"country": {"iso_code": country}} if country else {}
    if asn:
        record |= {"autonomous_system_number": asn, "autonomous_system_organization": name}
    return record
