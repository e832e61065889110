"""Task and Stock where recipes of one's own import them from. They live in recipes/task.py."""

from ..recipes.task import Stock, Task

__all__ = ["Stock", "Task"]
