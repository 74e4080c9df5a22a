"""Styles, formats, layout: what every part of the screen draws with."""
