"""All that a session gives to hand over, as files: reports, packets, rules in other tools' words, mails."""

from fwtop.report.bundle.contents import bundle_files

__all__ = ["bundle_files"]
