"""Garbage collection of the console: seldom, and not of what stays."""

from __future__ import annotations

import gc

# Most objects of a tick are freed by their reference counts. Python's usual thresholds would walk through all
# that was ever made several times a second: a fifth of the console's time on a calm machine.
_YOUNG, _MIDDLE, _OLD = 10_000, 10, 20


def collect_seldom() -> None:
    """Collect after many more new objects than usual."""
    gc.set_threshold(_YOUNG, _MIDDLE, _OLD)


def keep_out_of_collections() -> None:
    """Exempt everything that exists from later collections; for when a long-lived part has been built."""
    gc.collect()
    gc.freeze()
