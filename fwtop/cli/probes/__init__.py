"""What `fwtop doctor` looks at: each module asks about one thing and yields Checks."""
