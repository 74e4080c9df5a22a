"""Rules compiled to BPF: the program of one namespace, its maps, and where it is attached."""
