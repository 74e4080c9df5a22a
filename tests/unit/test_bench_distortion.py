"""What distorts a table of speeds is named beside it."""

from __future__ import annotations

from pathlib import Path

from fwtop.bench.frame import distortions

MODEL = "model name : Example\nflags : fpu vme {}\n"


def machine(root: Path, files: dict[str, str], flags: str = "") -> list[str]:
    for name, text in files.items():
        path = root / "cpu" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (root / "cpuinfo").write_text(MODEL.format(flags))
    told = distortions(root / "cpu", root / "cpuinfo")
    return [line for line in told if not line.startswith("other processes") and "packet socket" not in line]


def test_what_makes_figures_differ_is_named(tmp_path: Path) -> None:
    files = {
        "vulnerabilities/spectre_v2": "Mitigation: Retpolines; IBPB: conditional\n",
        "vulnerabilities/meltdown": "Not affected\n",
        "vulnerabilities/mds": "Vulnerable\n",
        "intel_pstate/no_turbo": "0\n",
        "cpu0/cpufreq/scaling_governor": "powersave\n",
        "cpu0/cpufreq/scaling_min_freq": "800000\n",
        "cpu0/cpufreq/scaling_max_freq": "3600000\n",
    }
    mitigated, turbo, clock, guest = machine(tmp_path, files, "hypervisor")
    assert mitigated.endswith("cost more: spectre_v2")
    assert turbo.startswith("turbo is on")
    assert clock == "the clock follows the load (governor powersave, 800 to 3,600 MHz)"
    assert guest.startswith("a virtual machine")


def test_a_machine_that_is_set_up_for_measuring_has_nothing_to_tell(tmp_path: Path) -> None:
    files = {
        "vulnerabilities/spectre_v2": "Vulnerable\n",
        "intel_pstate/no_turbo": "1\n",
        "cpu0/cpufreq/scaling_governor": "performance\n",
    }
    assert machine(tmp_path, files) == []
    assert machine(tmp_path / "bare", {"online": "0-1\n"}) == []
