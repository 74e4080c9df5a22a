"""The version of the corpus: a digest of everything that decides which packets it holds."""

from __future__ import annotations

import ast
import hashlib
from pathlib import Path

import benches.corpus
import fwtop.lab
from fwtop.lab.scenario import DIRECTORY

_DEFINITIONS = (ast.Module, ast.ClassDef, ast.FunctionDef)
_IMPORTS = (ast.Import, ast.ImportFrom)


def version() -> str:
    """Return the digest of the generator's statements and the lab's scenarios.

    Comments and imports don't count, nor do the modules in which statements stand: where a name comes from
    decides no packet.
    """
    digest = hashlib.sha256()
    trees = (_bare(ast.parse(module.read_text(encoding="utf-8"))) for module in _modules())
    for text in sorted(_text(statement) for tree in trees for statement in tree.body):
        digest.update(text.encode())
    for path in sorted(DIRECTORY.glob("*.toml")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _text(value: object) -> str:
    """Return the same text in every Python: from 3.13 on ast.dump leaves out other empty fields."""
    if isinstance(value, ast.AST):
        fields = [(name, getattr(value, name, None)) for name in value._fields]
        given = ", ".join(f"{name}={_text(field)}" for name, field in fields if field not in (None, []))
        return f"{type(value).__name__}({given})"
    return f"[{', '.join(map(_text, value))}]" if isinstance(value, list) else repr(value)


def _modules() -> list[Path]:
    corpus = Path(benches.corpus.__path__[0])
    lab = Path(fwtop.lab.__path__[0])
    made = (path for path in corpus.glob("*.py") if path.name != Path(__file__).name)
    return [*made, *(lab / "traffic").glob("*.py"), lab / "scenario.py"]


def _bare(tree: ast.Module) -> ast.Module:
    """Take docstrings and imports out of a module."""
    tree.body = [node for node in tree.body if not isinstance(node, _IMPORTS)]
    for node in ast.walk(tree):
        if isinstance(node, _DEFINITIONS) and ast.get_docstring(node, clean=False) is not None:
            node.body = node.body[1:]
    return tree
