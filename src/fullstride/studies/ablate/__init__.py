"""`fullstride ablate`. Start reading at run.py; techniques.py is the table of what is switched."""
