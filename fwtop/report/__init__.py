"""Reports of a session: HTML, Markdown, JSON, rules as a script."""
