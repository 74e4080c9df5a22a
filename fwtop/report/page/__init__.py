"""What the page is made of: markup that no text can break out of, charts, style."""
