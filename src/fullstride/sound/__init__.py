"""Sound as numbers and back: WAV files, mel spectra, pitch, Griffin-Lim, and how far two sounds are apart."""
