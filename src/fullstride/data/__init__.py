"""Data as a function of counters: what a sample is depends on (seed, epoch, index) alone, its turn on one number."""
