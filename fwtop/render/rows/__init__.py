"""Kinds of rows, each declared in a file of its own."""

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
from fwtop.render.rows.attack import ATTACK
from fwtop.render.rows.destination import DESTINATION
from fwtop.render.rows.field import RowType
from fwtop.render.rows.ledger import LEDGER
from fwtop.render.rows.payload import PAYLOAD
from fwtop.render.rows.port import PORT
from fwtop.render.rows.proposal import PROPOSAL
from fwtop.render.rows.rule import RULE
from fwtop.render.rows.signature import SIGNATURE
from fwtop.render.rows.source import SOURCE

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
