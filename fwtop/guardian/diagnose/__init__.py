"""Why a rule does nothing: what stands before it, and where the packets go instead."""

from fwtop.guardian.diagnose.explain import Subject, explain, over_text

__all__ = ["Subject", "explain", "over_text"]
