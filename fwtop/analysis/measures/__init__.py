"""What several attacks measure of their groups, and how they cut them: no attack knows another."""

from __future__ import annotations
