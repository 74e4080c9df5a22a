"""Rules tried on the packets that matter, before they are proposed or accepted."""
