"""Decoding single packets with scapy, in a confined process under a user of its own."""
