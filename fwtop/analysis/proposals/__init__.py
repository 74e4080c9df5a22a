"""Countermeasures: candidates, their measured effect, and previews of any rule."""
