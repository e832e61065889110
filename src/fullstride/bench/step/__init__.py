"""`fullstride bench step`. Start reading at benchmark.py.

    cases.py            what is measured, and what is expected
    benchmark.py        the sides take turns
    results.py          what came out of it
    process.py          a side's process, from outside
    side.py             and from inside: a plain training script; models.py has what it trains
    stock.py            the fastest settings of stock PyTorch
    table.py            the outcome as text and as JSON
"""
