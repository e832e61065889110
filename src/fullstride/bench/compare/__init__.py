"""`fullstride compare`. Start reading at benchmark.py; the sides and their processes are those of bench/step.

    folder.py           a recipe without Fullstride in it, for the sides
    work.py             the same, from the side's side
    table.py            the outcome as text and as JSON
"""
