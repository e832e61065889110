import pytest

from fullstride.report import drawing


@pytest.fixture
def fast_figures(monkeypatch):
    """Figures as empty boxes, for tests of what stands around them."""
    monkeypatch.setattr(drawing, "draw", lambda figure, number: f'<svg role="img" data-number="{number}"></svg>')
