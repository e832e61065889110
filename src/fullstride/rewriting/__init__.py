"""What puts fast modules and functions in place of a model's own, and takes them out again. README.md is the tour."""

from .mechanisms import MECHANISMS, check, wished
from .rewrite import Outcome, put_back, rewrite
from .trace import Trace, trace

__all__ = ["MECHANISMS", "Outcome", "Trace", "check", "put_back", "rewrite", "trace", "wished"]
