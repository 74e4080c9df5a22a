"""What root attaches to watch: the loader, its programs and their layout."""
