"""`fullstride bench step`. Start reading at benchmark.py."""
