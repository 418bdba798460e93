"""The sizes of a head."""

from holdfast.settings import is_size


def check_widths(width: object, classes: object) -> None:
    """Refuse sizes that are no whole numbers from 1."""
    if not (is_size(width) and is_size(classes)):
        raise ValueError(f"width is {width!r} and classes {classes!r} but both must be whole numbers, 1 or more")
