"""The reader of settings files: what is right counts, and each mistake is a line that names its place."""

from __future__ import annotations

from typing import Annotated, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import UNSET, Meta, Struct, UnsetType, defstruct, field

from fwtop.model.files import ConfigText, read_regular_text
from fwtop.model.settings_file import line_of, must, one_of, read, read_table, some_of, told


class Inner(Struct, frozen=True):
    """A table."""

    rate: Annotated[float, Meta(gt=0, le=1)] = 0.5
    port: Annotated[int, Meta(ge=0, le=65535)] | UnsetType = UNSET


class Example(Struct, frozen=True):
    """A file with one of everything."""

    name: Annotated[str, one_of(("a", "b"))] = "a"
    path: Annotated[str, must("a full path", lambda value: value.startswith("/"))] = ""
    names: Annotated[tuple[str, ...], some_of(("x", "y"), once=True)] = ("x",)
    level: Literal[1, 2] = 1
    flag: bool | Literal["auto"] = "auto"
    speed: Annotated[float, Meta(gt=0, lt=1e15)] | None = None
    count: Annotated[int, Meta(ge=1)] = 3
    texts: str | tuple[str, ...] = ()
    inner: Inner = Inner()
    rows: tuple[Inner, ...] = ()
    tables: dict[Annotated[str, Meta(pattern="^[a-z]$"), must("one letter")], Inner] = field(
        default_factory=dict
    )


def wrong(text: str) -> tuple[str, ...]:
    return read(Example, ConfigText("/f", text)).lines()


WRONG = {
    "name = 'c'": '/f:1: name must be one of "a", "b"; "a" holds',
    "name = 3": '/f:1: name must be one of "a", "b"; "a" holds',
    "path = 'x'": "/f:1: path must be a full path; it is ignored",
    "names = ['x', 'x']": '/f:1: names must be a list of "x", "y", each at most once; ["x"] holds',
    "names = 'x'": '/f:1: names must be a list of "x", "y", each at most once; ["x"] holds',
    "level = true": "/f:1: level must be one of 1, 2; 1 holds",
    "flag = 1": '/f:1: flag must be true or false, or "auto"; "auto" holds',
    "speed = nan": "/f:1: speed must be a number above 0 and below 1e+15; it is ignored",
    "speed = true": "/f:1: speed must be a number above 0 and below 1e+15; it is ignored",
    "count = 1.0": "/f:1: count must be a whole number of at least 1; 3 holds",
    "texts = [1]": "/f:1: texts must be text, or a list of text; it is ignored",
    "\n[inner]\n\nrate = 2": "/f:4: inner.rate must be a number above 0 and at most 1; 0.5 holds",
    "inner = { port = 1,\tport2 = 2 }": "/f:1: inner.port2 is unknown; there are rate, port; it is ignored",
    "inner = 3": "/f:1: inner must be a table; it is ignored",
    "[rows]": "/f:1: rows must be one of several tables: [[rows]]; it is ignored",
    "[[rows]]\n[[rows]]\nport = 99999\n": (
        "/f:3: rows[1].port must be a whole number from 0 to 65535; it is ignored"
    ),
    "tables = []": "/f:1: tables must be tables with names: [tables.NAME]; it is ignored",
    "[tables.ab]": "/f:1: tables.ab must have as its name one letter; it is ignored",
    "[tables.a]\nrate = 'x'": "/f:2: tables.a.rate must be a number above 0 and at most 1; 0.5 holds",
    "# x\nname = = 1": "/f:2: invalid value (column 8); the defaults hold",
    "name = 'a'\nname = 'a'": "/f:2: cannot overwrite a value (at the end); the defaults hold",
    "a = " + "[" * 5000: "/f: it is nested too deeply; the defaults hold",
    f"count = {'9' * 5000}": None,
}


@pytest.mark.parametrize(("text", "line"), WRONG.items(), ids=range(len(WRONG)))
def test_a_mistake_is_one_line(text: str, line: str | None) -> None:
    (said,) = wrong(text)
    assert said == line or (line is None and said.endswith("; the defaults hold"))


def test_what_is_right_counts_and_what_follows_may_be_said() -> None:
    text = (
        'name = "b"\ncount = 0\nspeed = 3\ntexts = "t"\n[tables.a]\nport = 1\nrate = 9\n[[rows]]\nrate = 1\n'
    )
    found = read(Example, ConfigText("/f", text))
    assert found.value == Example(
        name="b", speed=3.0, texts="t", tables={"a": Inner(port=1)}, rows=(Inner(rate=1.0),)
    )
    assert list(found.given) == ["name", "speed", "texts", "tables", "rows"]
    assert [line.rpartition("; ")[2] for line in found.lines("nothing was started")] == [
        "nothing was started"
    ] * 2
    assert read(Example, None).value == Example()
    (unreadable,) = read(Example, ConfigText("/f", "", "it is no regular file")).lines()
    assert unreadable == "/f: it is no regular file; the defaults hold"


def test_a_key_that_is_missing_and_one_of_very_many() -> None:
    class Needs(Struct):
        key: str
        rows: tuple[Inner, ...] = ()

    assert read(Needs, ConfigText("/f", "")).lines("no") == ("/f: key is missing; no",)
    many = defstruct("Many", [(f"name_{number}", int, 0) for number in range(20)])
    assert read(many, ConfigText("/f", "nam_17 = 1")).lines("no") == (
        "/f:1: nam_17 is unknown; the nearest is name_17; no",
    )


def test_a_file_that_is_not_there_is_none_and_another_is_told(tmp_path) -> None:
    assert read_regular_text(tmp_path / "none") is None
    (tmp_path / "bad").write_bytes(b"\xff")
    assert read_regular_text(tmp_path / "bad") == ConfigText(str(tmp_path / "bad"), "", "it is not UTF-8")
    assert read_regular_text(tmp_path).wrong == "it is no regular file"


LINES = '''schema = 1
[list.a]
entries = ["""
[[limit]]
rate = 1
"""]
[[limit]]  # the first
per = 24
x = [
  [1], # ]
]
[[ limit ]]
"rate" = 2
[limit.sub]
a."b.c" = 2
[thresholds]
rate = { a = 3 }
k = \'\'\'
per = 3
\'\'\'\'
'z' = 1.5e3
'''


@pytest.mark.parametrize(
    ("place", "line"),
    [
        (("schema",), 1),
        (("list", "a"), 2),
        (("list", "a", "entries", 0), 3),
        (("limit",), 7),
        (("limit", 0), 7),
        (("limit", 0, "rate"), 7),
        (("limit", 0, "per"), 8),
        (("limit", 0, "x", 0), 9),
        (("limit", 1, "rate"), 13),
        (("limit", 1, "sub", "a", "b.c"), 15),
        (("thresholds", "rate", "a"), 17),
        (("thresholds", "per"), 16),
        (("thresholds", "z"), 21),
        (("port", 0, "rate"), None),
    ],
)
def test_a_line_is_found_by_its_place(place: tuple[str | int, ...], line: int | None) -> None:
    assert line_of(LINES, place) == line


def test_poison_is_made_safe_and_long_texts_come_to_an_end() -> None:
    (line,) = wrong('"a\\u001b[2J[/]' + "x" * 5000 + '" = 1\n')
    assert line.isprintable()
    assert len(line) < 700
    for text in ('a=""""\\"', '"""', "[[a]]\n", "a.", "[", '"'):
        assert line_of(text * 50_000, ("b",)) is None  # of quadratic work nobody would see the end


_PLAIN = st.one_of(st.integers(), st.floats(), st.booleans(), st.text(max_size=8), st.dates(), st.times())
_VALUES = st.recursive(
    _PLAIN,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@settings(max_examples=100)
@given(st.dictionaries(st.sampled_from([*Example.__struct_fields__, "other"]), _VALUES))
def test_no_value_of_any_type_breaks_the_reader(table: dict[str, object]) -> None:
    file = ConfigText("/f", "")
    found = read_table(Example, table, file)
    assert isinstance(found.value, Example)
    assert all(line.isprintable() for line in found.lines())
    assert told(file, ("a",), "is wrong", "so") == "/f: is wrong; so"
