"""Sentences for a voice to speak: generated, from texts, and the everyday ones that are held out."""
