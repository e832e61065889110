"""What a run leaves on the disk: its folder, the lock of it, and rows of metrics. Start reading at folder.py."""
