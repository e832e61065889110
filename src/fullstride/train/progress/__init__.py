"""What a run tells while it goes on. Start reading at recorder.py."""
