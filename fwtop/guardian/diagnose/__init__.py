"""Why a rule does nothing: what stands before it, and where the packets go instead."""
