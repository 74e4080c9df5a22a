"""Unit and container by /proc/PID/cgroup, as runtimes and both hierarchies write it."""

from __future__ import annotations

import pytest

from fwtop.kernel.cgroups import unit_and_container

ID = "3f2a1b0c9d8e" + "0123456789abcdef" * 3 + "0123"
SHORT = "3f2a1b0c9d8e"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("0::/system.slice/nginx.service\n", ("nginx.service", ""), id="v2: a unit"),
        pytest.param("0::/system.slice/nginx.service/worker\n", ("nginx.service", ""), id="v2: delegated"),
        pytest.param(
            "0::/system.slice/system-postgresql.slice/postgresql@16-main.service\n",
            ("postgresql@16-main.service", ""), id="v2: an instance",
        ),
        pytest.param(
            "0::/user.slice/user-1000.slice/user@1000.service/app.slice/web.service\n",
            ("web.service", ""), id="v2: a user's unit",
        ),
        pytest.param(
            "0::/user.slice/user-0.slice/session-3.scope\n", ("session-3.scope", ""), id="v2: a login"
        ),
        pytest.param("0::/init.scope\n", ("init.scope", ""), id="v2: systemd itself"),
        pytest.param("0::/\n", ("", ""), id="v2: the root"),
        pytest.param("", ("", ""), id="it has ended"),
        pytest.param("nonsense\n:\n", ("", ""), id="nonsense"),
        pytest.param(
            "12:memory:/system.slice/sshd.service\n1:name=systemd:/system.slice/sshd.service\n",
            ("sshd.service", ""), id="v1: a unit",
        ),
        pytest.param(
            "4:memory:/jobs/9\n1:name=systemd:/system.slice/sshd.service\n0::/\n",
            ("sshd.service", ""), id="hybrid: systemd's hierarchy names the unit",
        ),
        pytest.param(f"0::/system.slice/docker-{ID}.scope\n", ("", f"docker {SHORT}"), id="v2: docker"),
        pytest.param(
            f"9:memory:/docker/{ID}\n1:name=systemd:/docker/{ID}\n0::/system.slice/containerd.service\n",
            ("", f"docker {SHORT}"), id="v1: docker, whatever the unit of its daemon",
        ),
        pytest.param(
            f"0::/machine.slice/libpod-{ID}.scope/container\n", ("", f"podman {SHORT}"), id="v2: podman"
        ),
        pytest.param(
            f"0::/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-{ID}.scope/container\n",
            ("", f"podman {SHORT}"), id="v2: podman without root",
        ),
        pytest.param(
            f"5:cpu:/libpod_parent/libpod-{ID}\n1:name=systemd:/machine.slice/libpod-{ID}.scope\n",
            ("", f"podman {SHORT}"), id="v1: podman",
        ),
        pytest.param(
            f"0::/system.slice/libpod-conmon-{ID}.scope\n", (f"libpod-conmon-{ID}.scope", ""),
            id="podman's monitor is in no container",
        ),
        pytest.param(
            "0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1f0c.slice/"
            f"cri-containerd-{ID}.scope\n",
            ("", f"containerd {SHORT}"), id="v2: kubernetes on containerd",
        ),
        pytest.param(
            f"7:pids:/system.slice/containerd.service/kubepods-pod1f0c.slice:cri-containerd:{ID}\n",
            ("", f"containerd {SHORT}"), id="v1: containerd without systemd's driver",
        ),
        pytest.param(
            f"0::/kubepods.slice/kubepods-pod1f0c.slice/crio-{ID}.scope\n", ("", f"cri-o {SHORT}"), id="cri-o"
        ),
        pytest.param(
            f"7:pids:/kubepods/besteffort/pod8d2e-11/{ID}\n", ("", f"kubernetes {SHORT}"),
            id="v1: kubernetes with cgroupfs",
        ),
        pytest.param("3:cpuset:/lxc/web/init.scope\n", ("init.scope", "lxc web"), id="v1: lxc"),
        pytest.param(
            "0::/lxc.payload.web/system.slice/nginx.service\n", ("nginx.service", "lxc web"),
            id="v2: a unit within lxc",
        ),
        pytest.param(
            f"0::/lxc.payload.web/system.slice/docker-{ID}.scope\n", ("", f"docker {SHORT}"),
            id="docker within lxc",
        ),
        pytest.param(
            "0::/machine.slice/systemd-nspawn@db.service/payload/system.slice/mysql.service\n",
            ("mysql.service", "nspawn db"), id="nspawn",
        ),
        pytest.param(
            f"0::/own-parent/{ID}\n", ("", f"container {SHORT}"), id="a parent of the operator's choice"
        ),
    ],
)  # fmt: skip
def test_units_and_containers(text: str, expected: tuple[str, str]) -> None:
    assert unit_and_container(text) == expected
