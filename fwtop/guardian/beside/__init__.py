"""A rule's lines beside those of others on connection states, for services that are not tracked."""
