"""Many machines: signed documents, their transport, the node on each machine, roll-outs (docs/FLEET.md)."""
