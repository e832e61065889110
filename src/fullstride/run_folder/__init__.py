"""What a run leaves on the disk: its folder, the lock of it, and rows of metrics. Start reading at folder.py.

    folder.py, lock.py           a folder that one process trains in, and others read
    metrics.py                   the rows; rows.py has them as JSON, tables.py as CSV, tensorboard.py as event files
"""
