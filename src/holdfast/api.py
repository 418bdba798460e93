"""What the package offers in one call each.

:func:`evaluate` attacks models, :func:`judge` is its judge alone, :func:`analyze` looks inside them, and :func:`fit`
trains them; :func:`batches` are those of a training loop of your own.
"""

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
from numpy import ndarray
from torch import Tensor, nn

from holdfast.attacks import from_numpy
from holdfast.contracts import Attack, Cascade, Predictor
from holdfast.crafting import Mode
from holdfast.crafting.arithmetic import Arithmetic
from holdfast.crafting.view import eval_mode
from holdfast.data import EvaluationSet
from holdfast.data.from_torch import evaluation_set
from holdfast.evaluation import analyze as analyzer
from holdfast.evaluation import evaluate as evaluator
from holdfast.evaluation.checks import check_model, check_predictor, identity
from holdfast.evaluation.evaluate import Budget, Settings
from holdfast.evaluation.foreign import Craft, Examples, name_of
from holdfast.evaluation.given import attacks_of, device_of, samples_of, seed_of, threats_of
from holdfast.evaluation.judge import predict
from holdfast.evaluation.measurements.cascade import outputs_of
from holdfast.evaluation.subject import Subject, network
from holdfast.evaluation.suite import measurements
from holdfast.geometry import Threat
from holdfast.models.classifier import as_own
from holdfast.progress import Progress
from holdfast.recipes.schema import EvaluateConfig
from holdfast.recipes.short import Access
from holdfast.recipes.tables.analyze import AnalyzeConfig
from holdfast.records.records import Records
from holdfast.report.analysis import Analysis
from holdfast.report.analysis_result import Analyzed as Analyzed
from holdfast.report.result import Result as Result
from holdfast.rng import Rng
from holdfast.training.fit import batches as batches
from holdfast.training.fit import fit as fit
from holdfast.training.fitted import Fitted as Fitted

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
    threats = threats_of(threat)
    data = samples_of(x, y, samples, threats)
    settings = partial(
        Settings,
        seed=seed_of(rng),
        shard=_SHARD if seconds == passes == inf else _SHARD_ON_BUDGET,
        arithmetic=arithmetic,
        crafting=crafting,
        budget=Budget(seconds, passes),
    )
    with Progress(shown=progress) as bars:
        found = {
            name: _records(name, one, data, threats, attacks, settings, partial(bars.report, f"evaluate {name}"))
            for name, one in _models(model).items()
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
    threats = threats_of(threat)
    data = samples_of(x, y, None, threats)
    if not isinstance(x_adv, Tensor | ndarray):
        second = "; of what foolbox returns, the second" if isinstance(x_adv, tuple | list) else ""
        raise ValueError(
            f"x_adv is a {type(x_adv).__name__}; give a tensor or an array, one example per sample{second}"
        )
    given = evaluation_set(x_adv, data.test.y, "adversarial").test
    if given.x.shape != data.test.x.shape:
        raise ValueError(
            f"x_adv has shape {tuple(given.x.shape)} but x has {tuple(data.test.x.shape)}; give one example per sample"
        )
    points = given.batch(torch.arange(len(given))).x
    examples = [Examples(threat=one, x_adv=points, index=data.test.index) for one in threats]
    return evaluate(model, data, threat=threats, attacks=examples, rng=rng, progress=False)


def analyze(
    model: Any,
    x: Any,
    y: Any = None,
    *,
    gallery: Any,
    threat: Threat | str,
    layer: str | None = None,
    layers: Sequence[str] = (),
    eps: float | Sequence[float] = (),
    steps: int | Sequence[int] = 40,
    k: int | Sequence[int] = 50,
    samples: int | None = None,
    rng: int | Rng = 0,
    progress: bool = True,
) -> Analyzed:
    """What features do under attack: ``analyze(model, x, y, gallery=(x_train, y_train), threat="linf:0.3")``.

    ``model`` is a network or a mapping from names to networks; ``x``, ``y``, ``threat``, ``samples`` and ``rng`` are
    those of :func:`evaluate`. ``gallery`` holds training samples, as a pair or a Dataset. ``layer`` names the module
    whose output is the features, by default the input of the last linear layer; ``result["name"].under[-1].layers``
    has r, r', nearest neighbors and detection in further ``layers``. Every sample is attacked by PGD with ``steps``
    steps, at each ``eps`` if some are given in place of that of the threat. The result holds, for each model, the
    ratios r and r' and the ``k``-nearest-neighbor accuracy of Mao et al. (2019), the detection of misclassified samples
    by class densities under PGD and under an attack that knows the detector, and the drift of features step by step;
    ``result["name"].projection()`` is their map.
    """
    if gallery is None or isinstance(gallery, str):
        raise ValueError(f"gallery is {gallery!r} but must be training samples; give (x_train, y_train) or a Dataset")
    threats = threats_of(threat)
    if len(threats) > 1:
        raise ValueError(f"{len(threats)} threats are given but features are followed under one; analyze them in turn")
    data = samples_of(x, y, samples, threats)
    x_known, y_known = gallery if isinstance(gallery, tuple) else (gallery, None)
    known = samples_of(x_known, y_known, None, threats)
    config = AnalyzeConfig(
        layer=layer, layers=_several(layers), eps=_several(eps), steps=_several(steps), k=_several(k)
    )
    plan = analyzer.Plan(threats[0], config)
    found = {}
    with Progress(shown=progress) as bars:
        for name, one in _models(model).items():
            with ExitStack() as stack:
                folder = Path(stack.enter_context(TemporaryDirectory(prefix="holdfast-")))
                subject = _subject(name, one, data, folder, stack)[0]
                settings = Settings(seed=seed_of(rng), shard=_SHARD, device=device_of(subject.model))
                tick = partial(bars.report, f"analyze {name}")
                sets = analyzer.Sets(samples=data.test, gallery=known.test)
                found[name] = Analysis(*analyzer.analyze(subject, sets, plan, settings, tick))
    return Analyzed(found, threats[0])


def _several(given: Any) -> tuple[Any, ...]:
    """One or several numbers as a tuple; whether they are numbers is checked with the other settings."""
    return tuple(given) if isinstance(given, Sequence) and not isinstance(given, str) else (given,)


def _models(given: Any) -> Mapping[str, Any]:
    models = given if isinstance(given, Mapping) else {_model_name(given): given}
    if not models:
        raise ValueError("there is no model to evaluate; give one, or a mapping from names to models")
    if odd := [name for name in models if not isinstance(name, str) or not name.strip()]:
        raise ValueError(f"the name of a model is {odd[0]!r} but must be a text")
    return models


def _model_name(model: Any) -> str:
    return name_of(model, "model") if not isinstance(model, nn.Module) else type(model).__name__


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
        chosen = attacks_of(attacks, threats, access)
        pictured = [n for n, (a, _) in chosen.items() if not isinstance(a, Cascade)]
        config = EvaluateConfig(strip=pictured[-1] if pictured else None)
        planned = measurements(chosen, config, len(data.test), classes)
        return evaluator.evaluate(subject, data.test, planned, settings(device=device_of(subject.model)), tick)


def _subject(name: str, model: Any, data: EvaluationSet, folder: Path, stack: ExitStack) -> tuple[Subject, int, Access]:
    """A checked model as a subject, its number of classes, and what attacks get from it."""
    facts = {"model": name, "method": "own", "seed": 0, "data": {"name": data.name, "digest": data.digest}}
    if isinstance(model, nn.Module):
        wrapped = as_own(model)
        stack.enter_context(eval_mode(wrapped))
        device = device_of(wrapped)
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
            _check_classes(model)
            return from_numpy(getattr(model, method))
    if isinstance(model, type):
        raise ValueError(f"the model is the class {model.__name__} but a model is needed; write {model.__name__}(...)")
    if not callable(model):
        raise ValueError(
            f"the model is a {type(model).__name__}; give a torch.nn.Module, a scikit-learn classifier or a callable, "
            "or a mapping from names to several"
        )
    return cast(Predictor, model)


def _check_classes(classifier: Any) -> None:
    """Refuse a scikit-learn classifier whose classes are not the class numbers that labels are."""
    classes = list(getattr(classifier, "classes_", ()))
    if classes != list(range(len(classes))):
        raise ValueError(
            f"the classes of {type(classifier).__name__} are {classes[0]}, ..., {classes[-1]} but class numbers from 0 "
            "are needed; fit it with those, e.g. by sklearn.preprocessing.LabelEncoder"
        )
