"""The version of the corpus: a digest of everything that decides which packets it holds."""

from __future__ import annotations

import ast
import hashlib
from pathlib import Path

import fwtop.bench.corpus
import fwtop.lab
from fwtop.lab.scenario import DIRECTORY

_DEFINITIONS = (ast.Module, ast.ClassDef, ast.FunctionDef)


def version() -> str:
    """Return the digest of the generator's statements and the lab's scenarios; comments don't count."""
    digest = hashlib.sha256()
    for module in _modules():
        digest.update(ast.dump(_without_docstrings(ast.parse(module.read_text(encoding="utf-8")))).encode())
    for path in sorted(DIRECTORY.glob("*.toml")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _modules() -> list[Path]:
    corpus = Path(fwtop.bench.corpus.__path__[0])
    lab = Path(fwtop.lab.__path__[0])
    return [*sorted(corpus.glob("*.py")), *sorted((lab / "traffic").glob("*.py")), lab / "scenario.py"]


def _without_docstrings(tree: ast.Module) -> ast.Module:
    for node in ast.walk(tree):
        if isinstance(node, _DEFINITIONS) and ast.get_docstring(node, clean=False) is not None:
            node.body = node.body[1:]
    return tree
