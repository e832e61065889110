"""`fullstride bench kernels`. Start reading at benchmark.py."""
