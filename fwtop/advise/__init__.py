"""From tables to judgement: baseline, classification, signatures, proposals, preview."""
