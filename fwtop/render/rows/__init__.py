"""Kinds of rows, each declared once."""

from __future__ import annotations

from fwtop.model.rule import RuleStatus
from fwtop.model.traffic.snapshot import (
    Attack,
    Destination,
    LedgerRow,
    PacketSignature,
    Payload,
    Port,
    Proposal,
    Source,
)
from fwtop.render.rows.defence import ATTACK, LEDGER, PROPOSAL, RULE
from fwtop.render.rows.field import RowType
from fwtop.render.rows.signature import SIGNATURE
from fwtop.render.rows.traffic import DESTINATION, PAYLOAD, PORT, SOURCE

ROW_TYPES: dict[type, RowType] = {
    Attack: ATTACK,
    Destination: DESTINATION,
    LedgerRow: LEDGER,
    PacketSignature: SIGNATURE,
    Payload: PAYLOAD,
    Port: PORT,
    Proposal: PROPOSAL,
    RuleStatus: RULE,
    Source: SOURCE,
}
