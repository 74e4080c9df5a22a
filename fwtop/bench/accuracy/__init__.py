"""Measuring accuracy: cases, an independent parser, scores, harm to clients."""
