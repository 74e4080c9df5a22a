"""Why a rule does nothing: what stands before it, and where the packets go instead."""

from fwtop.mitigate.why.explain import Subject, explain, over_text

__all__ = ["Subject", "explain", "over_text"]
