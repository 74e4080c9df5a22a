"""How rules get into the kernel: chains, nft tables, compiled programs, settings; in, out and read back."""
