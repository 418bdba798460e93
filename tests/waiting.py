"""Waiting for something in a browser."""

from typing import Any


def until(page: Any, condition: str, arg: Any = None) -> None:
    """Wait until a condition holds; it is asked from outside, because the policy of our pages forbids `eval` inside."""
    for _ in range(600):
        if page.evaluate(condition, arg):
            return
        page.wait_for_timeout(50)
    raise TimeoutError(f"the page did not get to {condition}")
