"""Kinds of rows, each declared once."""

from __future__ import annotations

from fwtop.render.rows.defence import ATTACK, LEDGER, PROPOSAL, RULE
from fwtop.render.rows.field import RowType
from fwtop.render.rows.service import SERVICE
from fwtop.render.rows.signature import SIGNATURE
from fwtop.render.rows.traffic import DESTINATION, PAYLOAD, PORT, SOURCE

_ROWS = (ATTACK, DESTINATION, LEDGER, SIGNATURE, PAYLOAD, PORT, PROPOSAL, RULE, SERVICE, SOURCE)
ROW_TYPES: dict[type, RowType] = {row.of: row for row in _ROWS}
