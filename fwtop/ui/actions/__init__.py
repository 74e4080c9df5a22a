"""What keys do: rules, session, recording, commands, packets."""
