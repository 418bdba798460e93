"""Checks of settings that several methods share."""

from dataclasses import fields
from typing import Any, Literal, get_args, get_origin


def check_choices(method: Any) -> None:
    """Refuse a value outside the Literal type of its dataclass field."""
    for field in fields(method):
        value, known = getattr(method, field.name), get_args(field.type)
        if get_origin(field.type) is Literal and value not in known:
            raise ValueError(f"{field.name} is {value!r} but it must be one of {', '.join(known)}")


def check_pool(pool: int) -> None:
    """Refuse a pool without samples."""
    if pool < 1:
        raise ValueError(f"pool is {pool} but negatives are drawn from a pool of at least one sample")
