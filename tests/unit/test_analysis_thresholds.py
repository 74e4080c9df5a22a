"""The operator's thresholds: docs/judge.toml names them all, good values count, bad ones are told."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from analysis_factory import make_batch, make_frames, make_tables, make_window

from fwtop.analysis.config import AdviseConfig, Thresholds, read_thresholds
from fwtop.console.judging import load_config
from fwtop.incidents.advisor import Advisor

SAMPLE = Path(__file__).parents[2] / "docs/judge.toml"


def test_the_sample_file_names_every_threshold_with_its_default() -> None:
    lines = [line for line in SAMPLE.read_text().splitlines() if re.match(r"# \w+ = ", line)]
    values = tomllib.loads("\n".join(line.removeprefix("# ") for line in lines))
    assert set(values) == set(Thresholds.__struct_fields__)
    assert values.pop("link_bits_per_second") > 0  # its default is what the hardware says
    assert values == {name: getattr(AdviseConfig(), name) for name in values}


def test_a_threshold_of_the_file_decides(tmp_path: Path) -> None:
    frames = make_frames([{"protocol": "udp", "count": 2000, "dport": 9}], 2.0)
    window = make_window(make_batch(frames), 2.0, live=True)
    file = tmp_path / "judge.toml"
    file.write_text("flood_pps = 2000\n")
    config, wrong = read_thresholds(AdviseConfig(), file)
    named = [Advisor(one).judge(window, make_tables(window)).attacks for one in (AdviseConfig(), config)]
    assert (len(named[0]), len(named[1]), wrong) == (1, 0, ())


def test_what_is_wrong_in_the_file_is_told_and_the_default_holds(tmp_path: Path) -> None:
    file = tmp_path / "judge.toml"
    file.write_text("live_share = 5\nscan_ports = true\nfloodpps = 1\nlink_full = nan\nmax_rows = 5\n")
    config, wrong = read_thresholds(AdviseConfig(), file)
    assert config == AdviseConfig()
    assert [line.split(": ", 1)[1].split()[0] for line in wrong] == [
        "live_share", "scan_ports", "floodpps", "link_full", "max_rows",
    ]  # fmt: skip
    file.write_text("flood_pps = = 1\n")
    assert read_thresholds(AdviseConfig(), file)[1] == (
        f"{file}:1: invalid value (column 13); the defaults hold",
    )
    assert read_thresholds(AdviseConfig(), tmp_path / "none") == (AdviseConfig(), ())


def test_the_uplink_is_as_fast_as_its_cards_together_and_unknown_where_one_is_virtual(tmp_path: Path) -> None:
    for name, speed, real in (("eth0", "1000", True), ("eth1", "10000", True), ("veth0", "10000", False)):
        (tmp_path / name / "device" if real else tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "speed").write_text(speed + "\n")
    speeds = [
        load_config(names, tmp_path).config.link_bits_per_second
        for names in (["eth0"], ["eth0", "eth1"], ["eth0", "veth0"], ["none"], [])
    ]
    assert speeds == [1e9, 11e9, None, None, None]
