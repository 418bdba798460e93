"""What attacks share, so that a file in this folder holds only what is particular to its attack.

A file defines one frozen dataclass. It subclasses :class:`LoopAttack` if the attack is the gradient loop of
``_ascent.py``, :class:`WrapperAttack` if it runs another attack, ``QueryAttack`` of ``_queries.py`` if it only asks the
model for outputs, and :class:`StandaloneAttack` otherwise. Callers rely on :class:`holdfast.contracts.Attack` alone,
never on these classes.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from typing import Any, Self, cast

from torch import Tensor, nn

from holdfast.attacks._ascent import Loop
from holdfast.attacks._checks import check_arguments, differences
from holdfast.attacks._rules import scaled
from holdfast.contracts import Attack, Keep, Loss, Rows, Start, Watch
from holdfast.crafting.view import check_accepts
from holdfast.geometry import Threat
from holdfast.rng import Rng
from holdfast.settings import check_numbers, check_types


class Checked:
    """Refuses settings and arguments of the wrong type, in one sentence, before a subclass uses them."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for name, wrap in (("__post_init__", _checked_settings), ("__call__", _checked_call)):
            if name in vars(cls):
                setattr(cls, name, wrap(vars(cls)[name]))

    def __post_init__(self) -> None:
        check_types(self)
        check_numbers(self)


def _checked_settings(check: Callable[[Any], None]) -> Callable[[Any], None]:
    @wraps(check)
    def checked(self: Any) -> None:
        check_types(self)
        check(self)
        check_numbers(self)

    return checked


def _checked_call(call: Callable[..., Tensor]) -> Callable[..., Tensor]:
    @wraps(call)
    def checked(self: Any, model: Any, x: Tensor, y: Tensor | Rows, *, rng: Rng, watch: Watch | None = None) -> Tensor:
        check_arguments(model, x, y, rng)
        try:
            return call(self, model, x, y, rng=rng, watch=watch)
        except RuntimeError as error:
            if unlike := differences(model, x):
                raise ValueError(unlike) from error
            check_accepts(model, x)
            raise

    return checked


class FixedLoss(Checked):
    """An attack whose loss and start cannot both be chosen, and which needs gradients unless a subclass says not."""

    black_box: bool = False

    def with_loss(self, loss: Loss, start: Start) -> Attack:
        """Refuse; attacks with the fields ``loss`` and ``start`` override this."""
        raise ValueError(
            f"{type(self).__name__} has no choice of loss and start, but this method climbs a loss of its own; "
            "give it PGD or FGSM"
        )


class StandaloneAttack(FixedLoss):
    """An attack with a threat and a loop of its own; a subclass adds ``__call__``."""

    threat: Threat
    keep: Keep = "last"
    step: float | None = None  # in input units; None if the attack derives its steps from eps

    @property
    def minimal(self) -> bool:
        """True if the attack returns the shortest perturbation that it finds."""
        return self.keep == "closest"

    def at(self, eps: float) -> Self:
        """The same attack at another eps, a given step size scaled in proportion."""
        changes: dict[str, Any] = {"threat": replace(self.threat, eps=eps)}
        if self.step is not None:
            changes["step"] = scaled(self.step, self.threat, eps)
        return cast(Self, replace(cast(Any, self), **changes))


class LoopAttack(StandaloneAttack, ABC):
    """An attack that is the gradient loop; a subclass adds ``loop``."""

    @property
    @abstractmethod
    def loop(self) -> Loop:
        """The loop that this attack runs."""

    def __post_init__(self) -> None:
        _ = self.loop  # so that bad settings are refused at construction

    def __call__(
        self, model: nn.Module, x: Tensor, y: Tensor | Rows, *, rng: Rng, watch: Watch | None = None
    ) -> Tensor:
        """Adversarial inputs for x."""
        return self.loop(model, x, y, rng=rng, watch=watch)


class WrapperAttack(FixedLoss):
    """An attack that runs another one, ``attack``, on another model than the one under test; a subclass adds
    ``__call__``.

    An attack that stops at the first success, or returns the closest one, stays at the decision boundary of the model
    that it sees. The model under test has another boundary, so such an attack is refused.
    """

    attack: Attack

    def __post_init__(self) -> None:
        if self.keep in ("fooled", "closest"):
            name = type(self).__module__.rpartition(".")[2]  # the name that recipes use
            raise ValueError(
                f'{name} needs an attack with keep="last" or "worst"; one that stops at the first success '
                "or keeps the closest stays at the boundary of the source"
            )

    @property
    def threat(self) -> Threat:
        """The threat of the inner attack."""
        return self.attack.threat

    @property
    def keep(self) -> Keep:
        """Which iterate the inner attack returns."""
        return self.attack.keep

    @property
    def minimal(self) -> bool:
        """Always False: the shortest perturbation on one model is not the shortest on another."""
        return False

    def at(self, eps: float) -> Self:
        """The same attack at another eps."""
        return cast(Self, replace(cast(Any, self), attack=self.attack.at(eps)))
