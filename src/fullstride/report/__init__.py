"""A run folder as one HTML file with pictures. Start reading at page.py.

    report.write(Path("runs/mlp"))  ->  runs/mlp/report.html

A task adds what only it can show as Sections; classification.py makes those of a classifier. Nothing here imports torch
or, before something is drawn, matplotlib.
"""

from .page import write
from .section import Figure, Gallery, Picture, Section, Table

__all__ = ["Figure", "Gallery", "Picture", "Section", "Table", "write"]
