"""The root process that owns the rules: server, service, journal, guard, allow-list."""
