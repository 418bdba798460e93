"""The sizes of a head."""


def check_widths(width: object, classes: object) -> None:
    """Refuse sizes that are no whole numbers from 1."""
    if not all(isinstance(size, int) and size > 0 for size in (width, classes)):
        raise ValueError(f"width is {width!r} and classes {classes!r} but both must be whole numbers, 1 or more")
