"""Compiling with bcc in a child process that doesn't read the kernel's symbols."""

from __future__ import annotations

from pathlib import Path

import pytest

from fwtop.compile import compiler
from fwtop.model.errors import FwtopError

pytestmark = pytest.mark.kernel
# Helpers that bcc replaces where it finds that a kernel lacks them
TEXT = f"""#include "{compiler.SOURCES}/kernel.h"
PROGRAM(probe)
int probe(void *context)
{{
	u64 value = 0;

	bpf_probe_read_kernel(&value, sizeof(value), context);
	bpf_probe_read_user(&value, sizeof(value), context);
	return value;
}}
"""


def test_the_byte_code_is_the_same_without_the_kernels_symbols(monkeypatch: pytest.MonkeyPatch) -> None:
    spared = compiler.compile_text(TEXT, {}, ["probe"])
    monkeypatch.setattr(compiler, "hide_kernel_symbols", lambda: None)
    assert compiler.compile_text(TEXT, {}, ["probe"]) == spared
    assert len(spared["probe"]) > 8 * 8
    assert "/proc/kallsyms" not in Path("/proc/self/mountinfo").read_text()  # the child's alone


def test_compiler_errors_are_raised(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(FwtopError, match="bcc could not compile") as raised:
        compiler.compile_text("int broken(", {}, ["broken"])
    assert raised.value.code == 1
    assert "expected parameter declarator" in capfd.readouterr().err
    with pytest.raises(FwtopError, match="bcc died"):  # whatever else befalls the child
        compiler.compile_text("int other(void) { return 0; }", {}, ["missing"])
