"""The report as a page: markup that no text can break out of, charts, tables, sections."""
