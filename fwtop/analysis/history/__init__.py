"""What judgement remembers between windows: baseline, timelines, scans, known sources."""
