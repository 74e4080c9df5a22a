"""The Packets tab: its list, its columns and filters, and the pane that explains the selected packet."""
