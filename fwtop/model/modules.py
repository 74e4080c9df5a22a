"""Modules of this very copy of fwtop as processes of their own."""

from __future__ import annotations

import sys

from fwtop.model.paths import ROOT

_BOOT = (
    "import runpy, sys; root, module = sys.argv[1:3]; del sys.argv[1:3]; sys.path.insert(0, root);"
    "runpy.run_module(module, run_name='__main__', alter_sys=True)"
)


def module_argv(module: str, *arguments: str) -> list[str]:
    """Return the argv that runs a module of this copy in an isolated interpreter.

    `-m` alone would not find a clone that is not installed, because `-I` ignores the directory and the
    environment; the copy's own directory is named instead.
    """
    return [sys.executable, "-I", "-c", _BOOT, str(ROOT), module, *arguments]
