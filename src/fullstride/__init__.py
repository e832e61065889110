"""Fullstride: kernels and optimizer steps that make PyTorch training on CPUs faster at the same quality."""

__version__ = "0.1.0"
