"""The words of the command line and what rules they make."""

from __future__ import annotations

import argparse
import gzip
import io
import random
from ipaddress import ip_network
from pathlib import Path

import pytest

from fwtop.cli.options import read_as
from fwtop.cli.rules import block, making
from fwtop.model.addresses import prefix_file
from fwtop.model.addresses.address import HostBitsError, Prefix
from fwtop.model.addresses.plain_prefixes import parse_lines
from fwtop.model.addresses.prefix_file import read_prefix_file
from fwtop.model.errors import FwtopError
from fwtop.model.rule import Range
from fwtop.model.traffic.protocols import read_flags, wire_name
from fwtop.rules import options
from fwtop.rules.kinds import command_line


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("1000/s", (1000, False)),
        ("600/m", (10, False)),
        ("2MB/s", (2_000_000, True)),
        ("50k/s", (50_000, False)),
    ],
)
def test_a_rate_is_read_with_its_unit(text: str, wanted: tuple[int, bool]) -> None:
    assert options.rate(text) == wanted


@pytest.mark.parametrize("text", ["", "1000", "0/s", "-1/s", "1/x", "1e3/s", "9999999999/s", "１/s"])
def test_what_is_no_rate_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a rate|must be at least one per second"):
        options.rate(text)


def test_dns_name_in_wire_form() -> None:
    assert wire_name(options.dns_labels("Example.com.")) == b"\x07Example\x03com\x00"
    for name in ("", "a..b", "x" * 64, "."):
        with pytest.raises(FwtopError):
            options.dns_labels(name)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [("syn,ack/syn", (18, 2)), ("all/none", (63, 0)), ("0x12", None), ("syn/ack", None), ("syn", (2, 2))],
)
def test_tcp_flags_are_read_by_name_or_refused(text: str, wanted: tuple[int, int] | None) -> None:
    if wanted is None:
        with pytest.raises(argparse.ArgumentTypeError):
            read_as(read_flags)(text)
    else:
        assert read_as(read_flags)(text) == wanted


DROP, SYNPROXY = making.VERBS["drop"], making.VERBS["synproxy"]


def arguments(module, *words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(exit_on_error=False)
    module.arguments(parser)
    return parser.parse_args(list(words))


def test_a_drop_may_be_of_some_sources_only() -> None:
    words = ["-4", "--proto", "udp", "--from", "198.51.100.53", "--sport", "53", "--via", "nftables"]
    rule = DROP.rule_of(arguments(DROP, *words))
    assert (rule.match.sources, rule.match.sport) == ((Prefix.parse("198.51.100.53"),), 53)
    assert command_line(rule) == f"fwtop drop {' '.join(words)} --ttl 10m"
    with pytest.raises(FwtopError, match="fwtop block"):
        DROP.rule_of(arguments(DROP, "--from", "198.51.100.53", "--via", "xdp"))


def test_a_range_is_read_with_open_ends_or_refused() -> None:
    args = arguments(DROP, "--via", "xdp", "--length", "40:", "--ttl-field", "64", "--proto", "udp")
    match = DROP.rule_of(args).match
    assert (match.ip_length, match.ttl) == (Range(40, 65535), Range(64, 64))
    for text in ("", ":", "9:3", "a:b", "0:70000"):
        with pytest.raises(argparse.ArgumentError):
            arguments(DROP, "--via", "xdp", f"--length={text}")


@pytest.mark.parametrize(
    "word", ["10.0.0.0/33", "asn:x", "asn:0", "country:XYZ", "example.com", "@/nonexistent"]
)
def test_bad_target_is_wrong_usage(word: str) -> None:
    with pytest.raises(FwtopError) as caught:
        block.run(arguments(block, word, "--yes"))
    assert caught.value.code == 2


def test_prefix_file_names_bad_lines(tmp_path: Path) -> None:
    file = tmp_path / "list"
    file.write_text("# list\n192.0.2.1\n\n198.51.100.0/24 # net\n::ffff:203.0.113.1\n192.0.2.1\n")
    assert [str(item) for item in read_prefix_file(str(file))] == [
        "192.0.2.1",
        "198.51.100.0/24",
        "203.0.113.1",
    ]
    file.write_text("192.0.2.1\nnonsense\n1.2.3.4/33\n1.2.3.4/x\n1.2.3.4/\n")
    with pytest.raises(FwtopError, match=r"line 2: 'nonsense'.*line 3: '1.2.3.4/33'.* and 1 more"):
        read_prefix_file(str(file))
    file.write_text("192.0.2.1\n1.2.3.4/" + "9" * 5000)
    with pytest.raises(FwtopError, match=r"line 2: '1\.2\.3\.4/99"):
        read_prefix_file(str(file))


@pytest.mark.parametrize("lines", [3, 20_000])
def test_a_compressed_prefix_file_is_refused_as_such(tmp_path: Path, lines: int) -> None:
    file = tmp_path / "list.gz"
    file.write_bytes(gzip.compress(b"".join(b"%d.9.%d.0/24\n" % (n % 200, n % 251) for n in range(lines))))
    with pytest.raises(FwtopError, match="is compressed: unpack it first") as caught:
        read_prefix_file(str(file))
    assert caught.value.code == 2


@pytest.mark.parametrize(
    "address",
    ["2001:DB8::5", "::1", "::ffff:192.0.2.129", "::192.0.2.1", "1::2::3", "fe80::1%eth0", "12345::"],
)
def test_a_list_means_what_the_command_line_means(tmp_path: Path, address: str) -> None:
    file = tmp_path / "list"
    for length in ("", "/0", "/1", "/47", "/64", "/96", "/120", "/128", "/129", "/-1", "/", "/x", "/ 8"):
        file.write_text(f"{address}{length}\n")
        try:
            expected = Prefix.parse(f"{address}{length}")
        except ValueError as error:
            said = "has host bits" if isinstance(error, HostBitsError) else "not an address or prefix"
            with pytest.raises(FwtopError, match=said):
                read_prefix_file(str(file))
        else:
            assert list(read_prefix_file(str(file))) == [expected]


def test_a_list_is_read_no_further_than_fits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefix_file, "MAX_FILE_BYTES", 1 << 20)
    with pytest.raises(FwtopError, match="/dev/zero has a line of more than 256 KiB; nothing was changed"):
        read_prefix_file("/dev/zero")
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"192.0.2.111\n" * 100_000)))
    with pytest.raises(FwtopError, match="larger than 1 MiB"):
        read_prefix_file("-")
    file = tmp_path / "from-an-editor"
    file.write_bytes(b"\xef\xbb\xbf192.0.2.1\r\n")
    assert list(read_prefix_file(str(file))) == [Prefix.parse("192.0.2.1")]


def test_an_empty_list_is_told_from_one_of_the_other_family(tmp_path: Path) -> None:
    file = tmp_path / "list"
    file.write_text("# nobody yet\n")
    with pytest.raises(FwtopError, match="contains no prefix; nothing was changed"):
        block.rules_of(arguments(block, f"@{file}"))
    file.write_text("192.0.2.1\n")
    with pytest.raises(FwtopError, match="contains no IPv6 prefix; nothing was changed"):
        block.rules_of(arguments(block, "-6", f"@{file}"))


def test_many_plain_lines_are_read_as_few_are(tmp_path: Path) -> None:
    rng = random.Random(4)
    lines = [
        str(ip_network((rng.getrandbits(32), rng.choice((32, rng.randrange(33)))), strict=False))
        for _ in range(20_000)
    ]
    lines = [rng.choice((line, line.removesuffix("/32"))) for line in lines]
    plain = tuple(sorted({Prefix.parse(line) for line in lines}))
    file = tmp_path / "list"
    file.write_text("\n".join(lines + lines[:5]))
    assert read_prefix_file(str(file)) == plain
    file.write_text(
        "# a comment\r\n" + "\r\n".join(lines) + "\n\n 2001:db8::/32 # and more\n::ffff:192.0.2.1\n"
    )
    more = {Prefix.parse("2001:db8::/32"), Prefix.parse("192.0.2.1")}
    assert read_prefix_file(str(file)) == tuple(sorted({*plain, *more}))
    file.write_text("\n".join(lines) + "\n# fine\nnot fine\n")
    with pytest.raises(FwtopError, match="line 20002: 'not fine'"):
        read_prefix_file(str(file))


def test_many_ipv6_lines_are_read_as_few_are(tmp_path: Path) -> None:
    """Shuffled among IPv4 ones, in every way to write them."""
    rng = random.Random(5)
    groups = ("0", "00", "1", "ffff", "DB8", "2001")
    wanted: set[Prefix] = set()
    lines: list[str] = []
    while len(lines) < 12_000:
        line = ":".join(rng.choice(groups) for _ in range(rng.choice((8, 8, rng.randrange(1, 8)))))
        line = rng.choice((line, line.replace(":", "::", 1), f"::{line}", f"{line}::", "::ffff:192.0.2.1"))
        line += rng.choice(("", "/64", f"/{rng.randrange(129)}", "/048"))
        line = rng.choice((line, line, f"192.0.2.{rng.randrange(256)}/{rng.randrange(33)}"))
        try:
            wanted.add(Prefix.parse(line))
        except ValueError:
            continue
        lines.append(line)
    file = tmp_path / "list"
    file.write_text("\n".join(lines))
    assert read_prefix_file(str(file)) == tuple(sorted(wanted))


@pytest.mark.parametrize(
    "line",
    ["1.2.3", "1.2.3.4.5", "1.2.3.256", "1.2.3.4/33", "1.2.3.04", "1.2..4", "1.2.3.4/", "1/2.3.4", "/8", "",
     "1.2.3.4/1/2", "1.2.3/4.5", "1234.1.1.1", "1.2.3.4/08", "1:2:3:4:5:6:7", "1:2:3:4:5:6:7:8:9", "1::2::3",
     "1:2:3:4::5:6:7:8", ":1::2", "1::2:", ":::", ":", "::/129", "::/a", "::/", "::/08", "::/1/2", "12345::",
     "::ffff:1:2", "::1.2.3.4", "g::", "::1%eth0", "1::/2:3", "10.77.0.3/8", "2001:db8::1/32", "8000::1/1"],
)  # fmt: skip
def test_what_is_not_plain_is_left_to_the_slower_way(line: str) -> None:
    piece = parse_lines(b"192.0.2.1\n2001:db8::\n" + line.encode() + b"\n")
    assert (2, line.encode()) in piece.others
    assert piece.lines == 3


def test_no_proxy_for_port_0():
    with pytest.raises(FwtopError, match="port 0"):
        SYNPROXY.rule_of(arguments(SYNPROXY, "--dport", "0"))
