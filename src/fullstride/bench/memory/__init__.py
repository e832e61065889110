"""`fullstride memory`. Start reading at benchmark.py."""
