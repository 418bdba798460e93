"""One call to evaluate models: :func:`evaluate`, and the judge alone: :func:`judge`."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from hashlib import sha256
from json import dumps
from math import inf
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import torch
from torch import Tensor, nn

from holdfast.attacks import from_numpy
from holdfast.contracts import Attack, Cascade, Predictor
from holdfast.crafting import Mode
from holdfast.crafting.arithmetic import Arithmetic
from holdfast.crafting.view import eval_mode
from holdfast.data import DataSet, EvaluationSet, load_test
from holdfast.data.from_torch import evaluation_set
from holdfast.evaluation import evaluate as evaluator
from holdfast.evaluation.cascade import outputs_of
from holdfast.evaluation.evaluate import Budget, Settings
from holdfast.evaluation.foreign import Craft, Examples, Foreign, name_of
from holdfast.evaluation.imported import Own, check_model, check_predictor, identity
from holdfast.evaluation.judge import predict
from holdfast.evaluation.subject import Subject, network
from holdfast.evaluation.suite import Attacks, measurements
from holdfast.geometry import Threat
from holdfast.models.classifier import adapt
from holdfast.progress import Progress
from holdfast.recipes.build import build_threat, json_table
from holdfast.recipes.schema import EvaluateConfig
from holdfast.recipes.short import Access, attack_name, default_attacks, name_at, read_attack
from holdfast.records.records import Records
from holdfast.report.result import Result as Result
from holdfast.rng import Rng

AnyAttack = str | Attack | Craft
_SHARD, _SHARD_ON_BUDGET = 1000, 100  # samples of a part; a budget is checked between parts


def evaluate(
    model: Any,
    x: Any,
    y: Any = None,
    *,
    threat: Threat | str | Sequence[Threat | str],
    attacks: AnyAttack | Sequence[AnyAttack] | Mapping[str, AnyAttack] = (),
    samples: int | None = None,
    rng: int | Rng = 0,
    seconds: float = inf,
    passes: float = inf,
    arithmetic: Arithmetic = "auto",
    crafting: Mode = "auto",
    progress: bool = True,
) -> Result:
    """Attack one or several models and judge every adversarial example: ``evaluate(model, x, y, threat="linf:8/255")``.

    ``model`` is an ``nn.Module`` that returns logits, a scikit-learn classifier or any callable that returns scores or
    labels (for black-box attacks), or a mapping from names to such models. ``x`` and ``y`` are samples and labels;
    in place of both ``x`` may be a Dataset or DataLoader of pairs, or the name of a data set. Inputs are in [0, 1]:
    normalization belongs inside the model.

    ``threat`` is what attacks may change, as ``"norm:eps"`` or :class:`Threat`; of several, each is attacked, and a
    sample is robust if it holds against all of them. ``attacks`` are names with settings as on the command line
    (``"pgd:steps=40"``), attack objects, or functions ``(model, x, y) -> x_adv``, alone, in a list or by name. By
    default these are noise, FGSM, PGD with 40 steps and triage.

    ``samples`` takes so many samples, evenly spaced. ``rng`` is the seed of the attacks. After ``seconds``, or so
    many forward and backward passes, of one model, attacks that are not finished are left out, and the result says so.
    ``arithmetic`` and ``crafting`` are described in :mod:`holdfast.crafting`. Results equal those of
    ``holdfast evaluate --model`` on the same samples.
    """
    threats = _threats(threat)
    data = _data(x, y, samples, threats)
    settings = partial(
        Settings,
        seed=_seed(rng),
        shard=_SHARD if seconds == passes == inf else _SHARD_ON_BUDGET,
        arithmetic=arithmetic,
        crafting=crafting,
        budget=Budget(seconds, passes),
    )
    models = model if isinstance(model, Mapping) else {_model_name(model): model}
    if not models:
        raise ValueError("there is no model to evaluate; give one, or a mapping from names to models")
    with Progress(shown=progress) as bars:
        found = {
            name: _records(name, one, data, threats, attacks, settings, partial(bars.report, f"evaluate {name}"))
            for name, one in models.items()
        }
    return Result(found, threats)


def judge(
    model: Any, x: Any, x_adv: Any, y: Any, threat: Threat | str | Sequence[Threat | str], *, rng: int | Rng = 0
) -> Result:
    """Judge adversarial examples from anywhere: whether each lies inside the threat and is misclassified, in float32.

    ``x_adv`` holds one example for each of the samples ``x``. A point outside the threat counts as failed; samples
    that are misclassified without an attack count as fooled at distance 0. ``model`` and the result are those of
    :func:`evaluate`; the attack is called "examples".
    """
    threats = _threats(threat)
    data = _data(x, y, None, threats)
    given = evaluation_set(x_adv, data.test.y, "adversarial").test
    if given.x.shape != data.test.x.shape:
        raise ValueError(
            f"x_adv has shape {tuple(given.x.shape)} but x has {tuple(data.test.x.shape)}; give one example per sample"
        )
    points = given.batch(torch.arange(len(given))).x
    examples = [Examples(threat=one, x_adv=points, index=data.test.index) for one in threats]
    return evaluate(model, data, threat=threats, attacks=examples, rng=rng, progress=False)


def _threats(given: Threat | str | Sequence[Threat | str]) -> tuple[Threat, ...]:
    each = [given] if isinstance(given, str | Threat) or not isinstance(given, Sequence) else given
    found = [one if isinstance(one, Threat) else build_threat(one, "threat") for one in each]
    if not found or len(set(found)) < len(found):
        raise ValueError(f"threat is {given!r} but at least one is needed, and each once, e.g. 'linf:8/255'")
    return tuple(found)


def _seed(rng: int | Rng) -> int:
    seed = rng.seed if isinstance(rng, Rng) else rng
    if not isinstance(seed, int) or isinstance(seed, bool) or seed < 0:
        raise ValueError(f"rng is {rng!r} but must be a seed, a whole number from 0, or an Rng")
    return seed


def _data(x: Any, y: Any, samples: int | None, threats: Sequence[Threat]) -> EvaluationSet:
    """The samples to evaluate on; samples outside the box of a threat are refused."""
    if samples is not None and (not isinstance(samples, int) or samples < 1):
        raise ValueError(f"samples is {samples!r} but must be a number of samples, at least 1, or None for all")
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


def _model_name(model: Any) -> str:
    return name_of(model) if not isinstance(model, nn.Module) else type(model).__name__


def _records(
    name: str,
    model: Any,
    data: EvaluationSet,
    threats: Sequence[Threat],
    attacks: Any,
    settings: Callable[..., Settings],
    tick: Callable[[int, int, str], None],
) -> Records:
    """Attack one model as the command line does; parts go to a folder that is removed afterwards."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="holdfast-")))
        subject, classes, access = _subject(name, model, data, folder, stack)
        chosen = _attacks(attacks, threats, access)
        pictured = [n for n, (a, _) in chosen.items() if not isinstance(a, Cascade)]
        config = EvaluateConfig(strip=pictured[-1] if pictured else None)
        planned = measurements(chosen, config, len(data.test), classes)
        return evaluator.evaluate(subject, data.test, planned, settings(device=_device(subject.model)), tick)


def _subject(name: str, model: Any, data: EvaluationSet, folder: Path, stack: ExitStack) -> tuple[Subject, int, Access]:
    """A checked model as a subject, its number of classes, and what attacks get from it."""
    facts = {"model": name, "method": "own", "seed": 0, "data": {"name": data.name, "digest": data.digest}}
    if isinstance(model, nn.Module):
        wrapped = model if adapt(model) is model else Own(model)
        stack.enter_context(eval_mode(wrapped))
        device = _device(wrapped)
        check_model(wrapped, data, device)
        identified = identity(type(model).__module__, wrapped)
        facts |= {"weights": {"kept": None, "digest": identified["weights"]}}
        digest = sha256(dumps(identified, sort_keys=True).encode()).hexdigest()
        classes = outputs_of(wrapped, data.test.batch(torch.arange(1), device).x)
        return network(wrapped, name=name, seed=0, digest=digest, folder=folder, facts=facts), classes, "gradients"
    predictor = _predictor(model)
    scores = check_predictor(predictor, data)
    about: dict[str, Any] = {
        "name": name,
        "seed": 0,
        "digest": name,
        "folder": folder,
        "facts": facts | {"weights": {"digest": ""}},
    }
    subject = Subject(**about, predict=partial(predict, predictor), scores=predictor)
    return subject, int(data.test.y.max()) + 1, "scores" if scores else "labels"


def _predictor(model: Any) -> Predictor:
    """A callable, or a scikit-learn classifier by its probabilities, or else its labels."""
    for method in ("predict_proba", "predict"):
        if hasattr(model, method):
            return from_numpy(getattr(model, method))
    if not callable(model):
        raise ValueError(
            f"the model is a {type(model).__name__}; give a torch.nn.Module, a scikit-learn classifier or a callable"
        )
    return cast(Predictor, model)


def _device(model: nn.Module | None) -> torch.device:
    tensors: Sequence[Tensor] = () if model is None else [*model.parameters(), *model.buffers()]
    return tensors[0].device if tensors else torch.device("cpu")


def _attacks(given: Any, threats: Sequence[Threat], access: Access) -> Attacks:
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
    if callable(given):
        return name or name_of(given), Foreign(threat=threat, function=given)
    raise ValueError(f"an attack is {given!r} but must be a name, an attack or a function (model, x, y) -> x_adv")


def _measures(attack: Attack, threat: Threat) -> bool:
    same = attack.threat.norm == threat.norm and (attack.threat.low, attack.threat.high) == (threat.low, threat.high)
    return same and (attack.threat.eps == threat.eps or (attack.minimal and attack.threat.eps > threat.eps))
