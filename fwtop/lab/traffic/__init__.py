"""What the lab sends: scenarios' vectors as templates, sources, payloads and orders of sending."""
