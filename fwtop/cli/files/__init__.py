"""Files that root opens for others: prefix lists, settings, outputs."""
