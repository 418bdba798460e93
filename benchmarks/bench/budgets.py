"""How much of everything: ``quick`` ends within ten minutes on two cores, ``full`` within two hours."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """What one subject is given. Numbers are samples unless they are called steps or epochs."""

    train: int
    epochs: int
    craft_steps: int
    plain: int  # samples the undefended model is trained on
    timed_steps: int
    judged: int
    judged_steps: int
    undefended: int
    ablated: int


@dataclass(frozen=True, kw_only=True)
class Budget:
    """What a run may cost."""

    name: str
    minutes: float
    repeats: int
    sizes: Mapping[str, Sizes]
    batches: tuple[int, ...] = (50, 250)
    train_batches: tuple[int, ...] = (50, 128)
    train_steps: int = 10  # crafting steps of timed training steps, where they are not the published ones
    memory: tuple[int, ...]
    seeds: tuple[int, ...]
    seed_train: int  # samples that the models of figure 5 see per epoch
    skipped: tuple[str, ...] = ()

    def allows(self, unit: str) -> bool:
        """Whether this budget has room for a figure, or for one subject of it."""
        return unit not in self.skipped and unit.partition(".")[0] not in self.skipped


# The LeNet costs 0.4 GFLOP per sample and step, ten times the others: it gets fewer of both.
FULL = Budget(
    name="full",
    minutes=120,
    repeats=5,
    memory=(1000, 10000),
    seeds=(0, 1, 2),
    seed_train=20000,
    sizes={
        "mlp": Sizes(
            train=50000,
            epochs=2,
            craft_steps=10,
            plain=10000,
            timed_steps=40,
            judged=10000,
            judged_steps=40,
            undefended=1000,
            ablated=1000,
        ),
        "lenet": Sizes(
            train=8000,
            epochs=1,
            craft_steps=5,
            plain=5000,
            timed_steps=10,
            judged=2000,
            judged_steps=10,
            undefended=250,
            ablated=300,
        ),
        "conv": Sizes(
            train=40000,
            epochs=1,
            craft_steps=7,
            plain=20000,
            timed_steps=20,
            judged=10000,
            judged_steps=10,
            undefended=500,
            ablated=500,
        ),
    },
)

QUICK = Budget(
    name="quick",
    minutes=10,
    repeats=5,
    memory=(1000, 2000),
    seeds=(),
    seed_train=0,
    skipped=("trained", "compiled", "undefended.lenet", "ablation.lenet", "step.lenet"),
    sizes={
        "mlp": Sizes(
            train=6000,
            epochs=1,
            craft_steps=5,
            plain=10000,
            timed_steps=40,
            judged=500,
            judged_steps=20,
            undefended=1000,
            ablated=512,
        ),
        "lenet": Sizes(
            train=500,
            epochs=1,
            craft_steps=3,
            plain=1500,
            timed_steps=2,
            judged=200,
            judged_steps=5,
            undefended=50,
            ablated=100,
        ),
        "conv": Sizes(
            train=3000,
            epochs=1,
            craft_steps=5,
            plain=10000,
            timed_steps=5,
            judged=500,
            judged_steps=10,
            undefended=250,
            ablated=512,
        ),
    },
)

_TINY = Sizes(
    train=200,
    epochs=1,
    craft_steps=1,
    plain=200,
    timed_steps=1,
    judged=20,
    judged_steps=2,
    undefended=4,
    ablated=10,
)

TINY = Budget(
    name="tiny",
    minutes=10,
    repeats=2,
    batches=(4, 8),
    train_batches=(8,),
    train_steps=2,
    memory=(20, 40),
    seeds=(0,),
    seed_train=200,
    sizes={"mlp": _TINY, "lenet": _TINY, "conv": _TINY},
)

BUDGETS = {budget.name: budget for budget in (QUICK, FULL, TINY)}
