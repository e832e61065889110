"""Measurements against stock PyTorch: of a training step, of a recipe, of every kernel."""
