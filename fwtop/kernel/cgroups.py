"""The systemd unit and the container of a process, by the paths of its cgroups.

/proc/PID/cgroup (cgroups(7)) has a line for each hierarchy: `0::PATH` for cgroup v2, `7:memory:PATH` and the
like for v1, where systemd keeps units in the one called `name=systemd`.
"""

from __future__ import annotations

import re
from itertools import pairwise

from fwtop.kernel.procfs import read_text

_ID = r"([0-9a-f]{64})"
_SHOWN = 12  # characters of a container's id, as in the lists of docker, podman and crictl
# Runtime → the part of a path that stands for one of its containers; written with the part before it
_CONTAINERS = tuple(
    (runtime, re.compile(pattern))
    for runtime, pattern in (
        ("docker", rf"docker/{_ID}|.*/docker-{_ID}\.scope"),
        ("podman", rf".*/libpod-(?:payload-)?{_ID}(?:\.scope)?"),
        ("containerd", rf".*/(?:cri-containerd|nerdctl)-{_ID}\.scope|.*:cri-containerd:{_ID}"),
        ("cri-o", rf".*/crio-{_ID}(?:\.scope)?"),
        ("kubernetes", rf"(?:pod.*|kubepods.*)/{_ID}"),
        ("lxc", r"lxc/(.+)|lxc\.payload/(.+)|.*/lxc\.payload\.(.+)"),
        ("nspawn", r".*/systemd-nspawn@(.+)\.service"),
        ("machine", r".*/machine-(.+)\.scope"),
        ("container", rf".*/{_ID}"),
    )
)
_UNIT = re.compile(r".+\.(?:service|scope)")


def unit_and_container(text: str) -> tuple[str, str]:
    """Parse /proc/PID/cgroup: unit and "RUNTIME NAME", each "" where there is none.

    A container within another is the one that counts, and the unit is one that runs inside of it.
    """
    lines = [line.split(":", 2) for line in text.splitlines() if line.count(":") >= 2]
    lines.sort(key=lambda line: (line[1] != "", line[1] != "name=systemd"))
    found = [_of_path(path) for _, _, path in lines]
    contained = (one for one in found if one[1])
    named = (one for one in found if one[0])
    return next(contained, None) or next(named, ("", ""))


def of_process(pid: int) -> tuple[str, str]:
    """Return unit and container of a process, not sanitised; "" if it has ended."""
    return unit_and_container(read_text(f"/proc/{pid}/cgroup"))


def _of_path(path: str) -> tuple[str, str]:
    parts = path.split("/")
    unit = container = ""
    for before, part in pairwise(parts):
        name = _container(f"{before}/{part}")
        if name:
            unit, container = "", name
        elif _UNIT.fullmatch(part):
            unit = part
    return unit, container


def _container(parts: str) -> str:
    for runtime, pattern in _CONTAINERS:
        found = pattern.fullmatch(parts)
        if found:
            name = str(next(group for group in found.groups() if group))
            return f"{runtime} {name[:_SHOWN] if re.fullmatch(_ID, name) else name}"
    return ""
