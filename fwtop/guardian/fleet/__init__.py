"""What a fleet's operators may do on this machine, by their signatures alone."""
