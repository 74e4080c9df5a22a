"""Style sheets that are parsed once for all tests of the screen."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from textual.css.model import RuleSet
from textual.css.stylesheet import Stylesheet


@pytest.fixture(scope="session", autouse=True)
def _style_sheets_parsed_once() -> Iterator[None]:
    """Keep the rules of a style sheet, which Textual parses anew for each app: a tenth of its start."""
    parse_rules = Stylesheet._parse_rules
    parsed: dict[tuple[object, ...], list[RuleSet]] = {}

    def parse_rules_once(self: Stylesheet, *source: Any, **options: Any) -> list[RuleSet]:
        key = (*source, *sorted(options.items()), *sorted(self._variables.items()))
        if key not in parsed:
            parsed[key] = parse_rules(self, *source, **options)
        return parsed[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Stylesheet, "_parse_rules", parse_rules_once)
        yield
