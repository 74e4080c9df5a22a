"""Reader of scenario files (TOML): a scenario with a mistake is refused whole, in one line."""

from __future__ import annotations

from pathlib import Path

from msgspec.structs import replace

from fwtop.lab.traffic.vectors import Scenario, ScenarioError
from fwtop.model.config_file import ConfigText, read_regular_text
from fwtop.model.settings_file import dotted, read, told

DIRECTORY = Path(__file__).resolve().parent / "scenarios"
_REFUSED = "the scenario is not used"


def names() -> list[str]:
    """Return the names of the bundled scenarios."""
    return sorted(path.stem for path in DIRECTORY.glob("*.toml"))


def load(name: str) -> Scenario:
    """Read a bundled scenario by name, or a file by a path ending in .toml."""
    if not name.endswith(".toml") and name not in names():
        raise ScenarioError(f"no scenario {name[:60]!r}; 'fwtop lab list' names them")
    path = Path(name) if name.endswith(".toml") else DIRECTORY / f"{name}.toml"
    return _read(read_regular_text(path) or ConfigText(name, "", "there is no such file"), path.stem)


def parse(text: str, name: str) -> Scenario:
    """Parse a scenario; raises ScenarioError."""
    return _read(ConfigText(f"scenario {name}", text), name)


def _read(file: ConfigText, name: str) -> Scenario:
    found = read(Scenario, file)
    if found.mistakes:
        raise ScenarioError(found.lines(_REFUSED)[0])
    scenario = found.value
    for number, vector in enumerate(scenario.vectors):
        if any(prefix.family != vector.family for prefix in vector.source.prefixes):
            raise _wrong(file, number, "source", "must be of the vector's family")
        if scenario.cycle == 0 and vector.active != (0.0, 1.0):
            raise _wrong(file, number, "active", "needs the scenario's 'cycle' (seconds)")
    vectors = (
        replace(vector, name=vector.name or f"vector-{number}")
        for number, vector in enumerate(scenario.vectors, 1)
    )
    return replace(scenario, name=name, vectors=tuple(vectors))


def _wrong(file: ConfigText, number: int, key: str, reason: str) -> ScenarioError:
    place = ("vector", number, key)
    return ScenarioError(told(file, place, f"{dotted(place)} {reason}", _REFUSED))
