"""Access to the training passes of a wrapped method, to whose features a metric term is added."""

from holdfast.contracts import Outputs, Terms


def training_passes(terms: Terms) -> tuple[Outputs, ...]:
    """The training passes of the wrapped method; the adversarial one is last if there is one."""
    if not terms.seen:
        raise ValueError(
            "the wrapped method does not return its training passes, so no metric term can be added; "
            "pass them to its Terms as `seen`"
        )
    return terms.seen
