"""What puts fast modules and functions in place of a model's own, and takes them out again. README.md is the tour."""

from .mechanisms import MECHANISMS, wished
from .order import Outcome, put_back, rewrite
from .step_trace import Trace, trace

__all__ = ["MECHANISMS", "Outcome", "Trace", "put_back", "rewrite", "trace", "wished"]
