"""What a call from Python is given, checked: threats, attacks, seeds, samples and the device of a model."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from holdfast.contracts import Attack
from holdfast.data import DataSet, EvaluationSet, load_test
from holdfast.data.from_torch import evaluation_set
from holdfast.evaluation.foreign import Examples, Foreign, name_of
from holdfast.evaluation.suite import Attacks
from holdfast.geometry import Threat
from holdfast.recipes.build import build_threat, json_table
from holdfast.recipes.short import Access, attack_name, default_attacks, name_at, read_attack
from holdfast.rng import Rng


def threats_of(given: Threat | str | Sequence[Threat | str]) -> tuple[Threat, ...]:
    """One or several threats, each given as such or as text; at least one, and each once."""
    each = [given] if isinstance(given, str | Threat) or not isinstance(given, Sequence) else given
    found = [one if isinstance(one, Threat) else build_threat(one, "threat") for one in each]
    if not found or len(set(found)) < len(found):
        raise ValueError(f"threat is {given!r} but at least one is needed, and each once, e.g. 'linf:8/255'")
    return tuple(found)


def seed_of(rng: int | Rng) -> int:
    """The seed of a number or a source of random numbers."""
    seed = rng.seed if isinstance(rng, Rng) else rng
    if not isinstance(seed, int) or isinstance(seed, bool) or seed < 0:
        raise ValueError(f"rng is {rng!r} but must be a seed, a whole number from 0, or an Rng")
    return seed


def check_labels_apart(x: Any, y: Any) -> None:
    """Refuse labels beside a data set, which has its own."""
    if y is not None and isinstance(x, str | DataSet | EvaluationSet):
        what = f"{x!r}, the name of a data set" if isinstance(x, str) else "a data set"
        raise ValueError(f"x is {what}, which has labels of its own; leave y out")


def samples_of(x: Any, y: Any, samples: int | None, threats: Sequence[Threat]) -> EvaluationSet:
    """The samples to evaluate on; samples outside the box of a threat are refused."""
    if samples is not None and (not isinstance(samples, int) or samples < 1):
        raise ValueError(f"samples is {samples!r} but must be a number of samples, at least 1, or None for all")
    check_labels_apart(x, y)
    if isinstance(x, str):
        found = load_test(x, samples=samples)
    elif isinstance(x, DataSet | EvaluationSet):
        found = EvaluationSet(x.name, x.test, x.classes)
    else:
        found = evaluation_set(x, y)
    found = EvaluationSet(found.name, found.test.spread(samples), found.classes)
    for threat in threats:
        threat.check(found.test.x.float() / 255 if found.test.x.dtype == torch.uint8 else found.test.x)
    return found


def device_of(model: nn.Module | None) -> torch.device:
    """The device of a model's tensors."""
    tensors = [] if model is None else [*model.parameters(), *model.buffers()]
    return tensors[0].device if tensors else torch.device("cpu")


def attacks_of(given: Any, threats: Sequence[Threat], access: Access) -> Attacks:
    """The attacks at each threat by name, with their settings; names at later threats say so."""
    found: dict[str, tuple[Attack, Mapping[str, Any]]] = {}
    for number, threat in enumerate(threats):
        for name, one in _named(given, threat, access):
            read = _read(one, name, threat, threats)
            if read is None:
                continue
            unique, attack = (read[0] if number == 0 else name_at(read[0], threat)), read[1]
            if unique in found:
                raise ValueError(
                    f"the attack {unique!r} is given twice; name them apart: attacks={{'a': ..., 'b': ...}}"
                )
            found[unique] = attack, {} if isinstance(attack, Examples) else json_table(attack)
    return found


def _named(given: Any, threat: Threat, access: Access) -> list[tuple[str, Any]]:
    """Attacks with the names that they were given, if any."""
    if isinstance(given, Mapping):
        return [(str(name), attack) for name, attack in given.items()]
    if isinstance(given, str) or not isinstance(given, Sequence):
        return [("", given)]
    return [("", attack) for attack in given or default_attacks(threat, access)]


def _read(given: Any, name: str, threat: Threat, threats: Sequence[Threat]) -> tuple[str, Attack] | None:
    """The name of an attack and the attack at a threat; None for an object that attacks at another one."""
    if isinstance(given, str):
        return name or "".join(given.split()), read_attack(given, f"the attack {given!r}", threat)
    if isinstance(given, Attack):
        measured = [one for one in threats if _measures(given, one)]
        if not measured:
            at = f"{given.threat.short} but the threat is {', '.join(one.short for one in threats)}"
            raise ValueError(f"{type(given).__name__} attacks at {at}; give it that threat, or name it as text")
        own = "examples" if isinstance(given, Examples) else attack_name(given)
        return (name or own, given) if measured[0] == threat else None
    if isinstance(given, type):
        raise ValueError(
            f"an attack is the class {given.__name__} but an object is needed; write {given.__name__}(...)"
        )
    if callable(given):
        return name or name_of(given), Foreign(threat=threat, function=given)
    raise ValueError(f"an attack is {given!r} but must be a name, an attack or a function (model, x, y) -> x_adv")


def _measures(attack: Attack, threat: Threat) -> bool:
    same = attack.threat.norm == threat.norm and (attack.threat.low, attack.threat.high) == (threat.low, threat.high)
    return same and (attack.threat.eps == threat.eps or (attack.minimal and attack.threat.eps > threat.eps))
