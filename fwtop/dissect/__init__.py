"""Reading packets in confined processes of another user: single ones in full, and who talks with whom."""
