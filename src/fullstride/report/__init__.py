"""A run folder as one HTML file with pictures. Start reading at page.py. Nothing here imports torch."""

from .page import write
from .section import Figure, Gallery, Picture, Section, Table

__all__ = ["Figure", "Gallery", "Picture", "Section", "Table", "write"]
