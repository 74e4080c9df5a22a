"""The session database: bounded in size, readable while it is written."""

from fwtop.store.baselines import BaselineStore
from fwtop.store.directory import SESSION_DIRECTORY, find_session
from fwtop.store.reader import list_sessions, load_session, replay, session_info
from fwtop.store.writer import SessionWriter

__all__ = [
    "SESSION_DIRECTORY",
    "BaselineStore",
    "SessionWriter",
    "find_session",
    "list_sessions",
    "load_session",
    "replay",
    "session_info",
]
