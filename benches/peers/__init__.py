"""fwtop beside what others would use on the same host, against the same attacks."""
