"""Fullstride: neural-network training on CPUs, several times faster than stock PyTorch."""

__version__ = "0.1.0"
