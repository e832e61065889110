"""Training runs. Start reading at trainer.py."""
