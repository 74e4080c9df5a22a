"""Where a recording goes besides its session: JSON lines, metrics, alarms."""
