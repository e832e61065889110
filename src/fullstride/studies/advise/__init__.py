"""`fullstride advise`: time, memory and energy of a step, predicted and checked; the bottleneck, and what to change.

Start reading at advice.py. The formula is prediction.py; what it counts is watching.py, functions.py and costs.py; what
it is fed with is rates.py, replay.py and overhead.py.
"""
