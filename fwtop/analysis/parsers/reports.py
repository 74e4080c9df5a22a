"""Reports that machines send one way: logs, metrics, flow records. Never raises on hostile bytes.

Sources: RFC 3164 and 5424 (syslog), the statsd, Graphite and InfluxDB line protocols, GELF, RFC 3954
(NetFlow 9), RFC 7011 (IPFIX), the sFlow 5 specification, RFC 3416 (SNMP notifications), RFC 1950 (zlib).
"""

from __future__ import annotations

import re

import numpy as np

from fwtop.model.traffic.packets import I64, U8, Mask

_LINE = re.compile(
    rb"<\d{1,3}>"  # syslog
    rb'|\{\s*"'  # JSON
    rb"|[\w.,=/-]{1,90}:[-+]?[\d.]+\|[a-z]"  # statsd
    rb"|[\w,=/-]{1,60}\.[\w.,=/-]{1,90}\s[-+]?\d"  # Graphite
    rb"|[\w,=.-]+ \w+="  # InfluxDB
    rb"|\d{4}-\d\d-\d\d[T ]\d\d:"  # a time, as programs begin their lines
)
_RECORD = re.compile(
    rb"\x00\x05\x00[\x01-\x1e]|\x00[\x09\x0a][\x00-\x05]|\x00\x00\x00\x05\x00\x00\x00[\x01\x02]"  # flows
    rb"|\x78[\x01\x5e\x9c\xda]|\x1f\x8b\x08"  # compressed
    rb"|\x30.{1,3}\x02\x01[\x00\x01\x03]\x04?"  # SNMP
    rb"|2[WC]",  # Beats
    re.DOTALL,
)
_ANSWER = re.compile(
    rb"\xa2(?:[\x00-\x7f]|\x81.|\x82..)\x02(?:\x01(.)|\x02(..)|\x03(...)|\x04(....))", re.DOTALL
)
_TOLD = 16  # bytes
_FEW = 8  # distinct ones of the first 32: a byte or a word again and again


def is_report(matrix: U8, held: I64) -> Mask:
    """Mark the payloads that begin as reports do; `held` bytes of each row are real."""
    texts = (one[:n].tobytes() for one, n in zip(matrix, held.tolist(), strict=True))
    return np.array([bool(_LINE.match(text) or _RECORD.match(text)) for text in texts], np.bool_)


def framed(matrix: U8, held: I64) -> float:
    """Return the share of payloads with the most common first byte: protocols begin alike, noise doesn't."""
    first = matrix[held > 0, 0]
    return float(np.bincount(first).max()) / len(first) if len(first) else 0.0


def is_filler(matrix: U8, held: I64) -> Mask:
    """Mark the payloads of 16 bytes or more that repeat a byte or a word."""
    ordered = np.sort(matrix, axis=1)
    distinct = (
        1 + (ordered[:, 1:] != ordered[:, :-1]).sum(1) - ((held < matrix.shape[1]) & (ordered[:, 0] == 0))
    )
    return np.asarray((held >= _TOLD) & (distinct <= _FEW))


def snmp_numbers(matrix: U8, held: I64) -> list[bytes]:
    """Return the request number of each SNMP response (RFC 3416 3) among the payloads."""
    found = (_ANSWER.search(one[:n].tobytes()) for one, n in zip(matrix, held.tolist(), strict=True))
    return [next(filter(None, one.groups()), b"") for one in found if one]
