"""Checkpoints: written aside, synced, sealed, renamed, read back. Start reading at store.py."""
