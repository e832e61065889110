"""The trainer: a config in, a run folder out. Start reading at trainer.py."""
