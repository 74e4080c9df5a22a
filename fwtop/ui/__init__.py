"""The terminal UI: renders snapshots and sends keys on; nothing else."""
