"""What a metric term is added to."""

from holdfast.contracts import Outputs, Terms


def last_seen(terms: Terms) -> Outputs:
    """The last training pass of a method, adversarial where it has such."""
    if not terms.seen:
        raise ValueError(
            "the method inside tells nothing of its passes, so no metric term can be added; give its Terms `seen`"
        )
    return terms.seen[-1]
