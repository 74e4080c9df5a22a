"""Judgement of a window: baseline, attacks, spoofing, signatures, proposals, preview."""
