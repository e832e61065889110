"""`fullstride compare`. Start reading at benchmark.py; the sides and their processes are those of bench/step."""
