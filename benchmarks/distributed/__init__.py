"""What training in several processes costs and gains; docs/distributed.md shows it.

    runs.py            trainings by the command, and what their rows tell
    processes.py       one process with all threads against two with half of them each
    averaging.py       what a process loses by averaging gradients with another
    sharding.py        memory of each process, with the optimizer's states in all of them and in one each
    two_hosts.py       steps over throttled links, measured and predicted
    local_updates.py   islands against averages of gradients over a slow link
    tables.py          the blocks of docs/distributed.md
    pictures.py        its pictures
"""
