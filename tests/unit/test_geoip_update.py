"""A newer GeoIP database replaces the one in place only if it is one, knows the world, and is newer."""

from __future__ import annotations

import contextlib
import gzip
import http.server
import io
import itertools
import ssl
import string
import subprocess
import tarfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from mmdb_files import write_records

from fwtop.cli import geoip
from fwtop.cli.main import main
from fwtop.enrich.geoip import _KNOWN

NOW = int(time.time())
DAY = 86_400
COUNTRIES = ["".join(pair) for pair in itertools.product(string.ascii_uppercase, repeat=2)]
NAME = "GeoLite2-Country.mmdb"


@pytest.fixture
def tmp_path(open_path: Path) -> Path:
    """Root becomes another user for reading."""
    return open_path


def world(path: Path, *, days: int = 1, networks: int = 200, known: bool = True) -> Path:
    """A database that knows the world, made `days` ago, of so many large networks."""
    records: dict[str, dict[str, object]] = {}
    for number in range(networks):
        records[f"{1 + number}.0.0.0/8"] = {"country": {"iso_code": COUNTRIES[number]}}
    for address, country, _ in _KNOWN if known else ():
        records[f"{address}/{128 if ':' in address else 32}"] = {"country": {"iso_code": country}}
    return write_records(path, records, kind="GeoLite2-Country", built=NOW - days * DAY)


def update(directory: Path, *words: object) -> int:
    return main(["geoip", "update", *map(str, words), "--directory", str(directory)])


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A directory with a database of 30 days ago."""
    directory = tmp_path / "GeoIP"
    assert update(directory, world(tmp_path / "first.mmdb", days=30)) == 0
    return directory


def packed(kind: str, path: Path) -> Path:
    data = path.read_bytes()
    if kind == "gzip":
        target = path.with_suffix(".mmdb.gz")
        target.write_bytes(gzip.compress(data))
    elif kind == "tar":  # as MaxMind's downloads
        target = path.with_suffix(".tar.gz")
        with tarfile.open(target, "w:gz") as archive:
            for name, content in (("x/LICENSE.txt", b"free"), (f"x/{NAME}", data)):
                member = tarfile.TarInfo(name)
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
    else:
        target = path
    return target


@pytest.mark.parametrize("kind", ["plain", "gzip", "tar"])
def test_a_newer_database_takes_the_old_ones_place(
    place: Path, tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    new = world(tmp_path / "new.mmdb", days=2)
    assert update(place, packed(kind, new)) == 0
    assert [path.name for path in place.iterdir()] == [NAME]
    assert (place / NAME).read_bytes() == new.read_bytes()
    assert (place / NAME).stat().st_mode & 0o777 == 0o644
    assert "GeoLite2-Country of " in capsys.readouterr().out
    assert main(["geoip", "--directory", str(place)]) == 0
    assert "(2 days old)" in capsys.readouterr().out


CASES = {
    "no database": (lambda path: path.write_bytes(b"<html>"), "it is not a MaxMind DB file"),
    "cut": (lambda path: path.write_bytes(world(path).read_bytes()[:2_000]), "it is not a MaxMind DB file"),
    "broken gzip": (lambda path: path.write_bytes(gzip.compress(b"x" * 9_000)[:30]), "can't be unpacked"),
    "of the future": (lambda path: world(path, days=-9), "of a day in the future"),
    "stale": (lambda path: world(path, days=300), "it is 300 days old"),
    "older": (lambda path: world(path, days=40), "it is 10 days older than the one in place"),
    "smaller": (lambda path: world(path, networks=60), "it knows only"),
    "wrong": (lambda path: world(path, known=False), "well-known origins"),
    "of nothing": (
        lambda path: write_records(path, {"0.0.0.0/1": {"city": "x"}}, built=NOW),
        "neither countries nor AS numbers",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_what_is_worse_replaces_nothing(
    place: Path, tmp_path: Path, case: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = (place / NAME).read_bytes()
    make, says = CASES[case]
    make(tmp_path / "bad")
    assert update(place, tmp_path / "bad") == 1
    line = capsys.readouterr().err
    assert says in line
    assert "nothing was replaced" in line
    assert line.count("\n") == 1
    assert [path.name for path in place.iterdir()] == [NAME]
    assert (place / NAME).read_bytes() == before


def test_only_the_operator_s_word_brings_in_an_older_one(place: Path, tmp_path: Path) -> None:
    older = world(tmp_path / "older.mmdb", days=40)
    assert update(place, older, "--force") == 0
    assert (place / NAME).read_bytes() == older.read_bytes()
    assert update(place, world(tmp_path / "wrong.mmdb", known=False), "--force") == 1


@contextlib.contextmanager
def https(content: bytes, directory: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Serve a file at /file, and a redirection to it, with a certificate that clients trust."""
    key, certificate = directory / "key.pem", directory / "cert.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost",
         "-addext", "subjectAltName=DNS:localhost", "-keyout", key, "-out", certificate],
        check=True, capture_output=True, timeout=60,
    )  # fmt: skip
    certificate.chmod(0o644)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = self.path.startswith("/file?key=")
            self.send_response(200 if found else 302 if self.path == "/moved" else 404)
            self.send_header("Location", "/file?key=secret")
            self.end_headers()
            self.wfile.write(content if found else b"")

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"https://localhost:{server.server_port}"
        server.shutdown()


def test_a_url_is_downloaded_and_its_key_is_not_shown(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    new = packed("gzip", world(tmp_path / "new.mmdb"))
    with https(new.read_bytes(), tmp_path, monkeypatch) as url:
        assert update(place, f"{url}/moved") == 0
        assert (place / NAME).read_bytes() == (tmp_path / "new.mmdb").read_bytes()
        capsys.readouterr()
        assert update(place, f"{url}/none?key=secret") == 1
    line = capsys.readouterr().err
    assert "the download from localhost failed: status 404" in line
    assert "secret" not in line
    assert update(place, "https://127.0.0.1:1/x") == 1
    assert "the download from 127.0.0.1 failed: Connection refused; nothing" in capsys.readouterr().err
    assert update(place, "http://localhost/x") == 2


def test_without_a_file_geoipupdate_fetches_what_the_key_allows(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(geoip, "_CONFIG", str(tmp_path / "GeoIP.conf"))
    assert update(place) == 2
    assert "geoipupdate is not set up" in capsys.readouterr().err
    new, program = world(tmp_path / "new.mmdb"), tmp_path / "geoipupdate"
    program.write_text(f'#!/bin/sh\n[ "$1 $3" = "-f -d" ] && cp {new} "$4/{NAME}"\n')
    program.chmod(0o755)
    (tmp_path / "GeoIP.conf").write_text("AccountID 1\n")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert update(place) == 0
    assert (place / NAME).read_bytes() == new.read_bytes()
    assert [path.name for path in place.iterdir()] == [NAME]
