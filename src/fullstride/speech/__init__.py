"""Speech with its phonemes: synthesisers that tell when each ends, and the way from text to phonemes."""
