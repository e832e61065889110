"""A corpus of speech: what is spoken, by whom, and what is kept of it for training."""
