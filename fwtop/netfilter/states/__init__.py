"""Rules on connection states: which need tracking, and what replaces them where a service is not tracked."""
