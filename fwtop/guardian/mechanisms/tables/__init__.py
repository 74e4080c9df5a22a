"""Rules in nftables tables of fwtop's own."""
