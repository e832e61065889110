"""What puts fast modules and functions in place of a model's own, and takes them out again. README.md is the tour."""

from .mechanisms import MECHANISMS, PARTS, SWITCHES, wished
from .order import Outcome, put_back, rewrite
from .step_trace import Trace, trace

__all__ = ["MECHANISMS", "PARTS", "SWITCHES", "Outcome", "Trace", "put_back", "rewrite", "trace", "wished"]
