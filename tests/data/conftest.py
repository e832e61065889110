from hypothesis import settings

# A loaded machine misses deadlines; what was found before would make two runs of the same tests differ.
settings.register_profile("data", deadline=None, database=None)
settings.load_profile("data")
