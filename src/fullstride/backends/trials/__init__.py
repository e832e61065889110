"""What is tried before it is used, in a child process: each library's products and low-precision operations.

    verdicts.py     what became of a candidate, in words, and what follows from it
    candidates.py   the operations that are tried, each with a check of its numbers
    race.py         how fast the products are, by shape
    child.py        the process: forks of it try one after the other, and the death of one is nobody else's
    parent.py       starts it, and reads what it says line by line
"""
