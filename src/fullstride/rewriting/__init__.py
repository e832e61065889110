"""What puts fast modules and functions in place of a model's own, and takes them out again. README.md is the tour."""

from .mechanisms import MECHANISMS, check, wished
from .rewrite import Outcome, put_back, rewrite

__all__ = ["MECHANISMS", "Outcome", "check", "put_back", "rewrite", "wished"]
