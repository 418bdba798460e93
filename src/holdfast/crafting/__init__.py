"""The fast frozen view of a model that attacks use."""

from holdfast.crafting.view import Mode, confirmed, crafting, described, frozen, unwrapped, using

__all__ = [
    "Mode",
    "confirmed",
    "crafting",
    "described",
    "frozen",
    "unwrapped",
    "using",
]
