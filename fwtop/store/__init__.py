"""The session database: bounded in size, readable while it is written."""
