"""What to set and why, measured on this machine: ablate, tune, advise, lr-find. One folder a command.

Each leaves a folder that it can be continued from (bench/study.py). Start reading at the file with run() in it.
"""
