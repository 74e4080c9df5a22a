"""Netfilter's state, of fwtop and of all others: the only readers and writers of it."""
