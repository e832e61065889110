"""`fullstride bench kernels`. Start reading at benchmark.py.

    row.py, rows/       one line of it; one file an op
    table.py            the outcome as text and as JSON
"""
