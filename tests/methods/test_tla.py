import math
from collections import Counter

import by_hand
import pytest
import torch
from torch import nn

from holdfast.contracts import Batch, Needs
from holdfast.methods.tla import TLA
from holdfast.rng import Rng

NAMES = {"class": ["triplet"], "copy": ["copy_triplet"], "both": ["triplet", "copy_triplet"]}


def method(**options):
    return TLA(attack=by_hand.Shift(threat=by_hand.threat()), **options)


def cleans(batch, positive):
    """The clean samples of each triplet, without noise."""
    return {name: batch.positive if name == "triplet" else batch.x for name in NAMES[positive]}


def expected(model, batch, tla):
    """Total and parts for nearest negatives and no noise, computed by Python loops."""
    layer, pool = tla.layer, batch.pool
    adversarial = by_hand.embed(model, by_hand.shifted(batch.x), layer)
    total = by_hand.cross_entropy(by_hand.logits(model, by_hand.shifted(batch.x)), batch.y, tla.smoothing)
    parts = {"cross_entropy": total}
    for name, x in cleans(batch, tla.positive).items():
        clean = by_hand.embed(model, x, layer)
        a, p = (adversarial, clean) if tla.anchor == "adversarial" else (clean, adversarial)
        everyone = by_hand.embed(model, pool.x, layer)
        n = everyone[by_hand.nearest(a, batch.y, everyone, pool.y, tla.signed_search)]
        wide = name == "copy_triplet" and tla.copy_margin is not None
        hinge = by_hand.triplet(a, p, n, tla.copy_margin if wide else tla.margin)
        size = by_hand.norm_term(a, p, n, tla.norm)
        total += tla.lambda1 * hinge + tla.lambda2 * size * (tla.lambda1 if tla.norm == "mean_square" else 1)
        parts |= {name: hinge, f"{name}_norm": size}
        if name == "copy_triplet" and tla.matching:
            parts["matching"] = sum(by_hand.length(u - v) ** 2 for u, v in zip(a, p, strict=True)) / len(a)
            total += tla.matching * parts["matching"]
    return total, parts


@pytest.mark.parametrize("anchor", ["adversarial", "clean"])
@pytest.mark.parametrize("positive", ["class", "copy", "both"])
@pytest.mark.parametrize("norm", ["length", "mean_square"])
@pytest.mark.parametrize("signed_search", [False, True])
@pytest.mark.parametrize("layer", [None, "logits", "encoder.0"])
def test_total_and_parts_equal_a_loop(anchor, positive, norm, signed_search, layer, rng):
    model, batch = by_hand.network(), by_hand.samples()
    copies = positive != "class"
    tla = method(
        lambda1=0.7,
        lambda2=0.03,
        margin=0.2,
        copy_margin=0.6 if copies else None,
        matching=0.4 if copies else 0.0,
        anchor=anchor,
        positive=positive,
        noise="none",
        norm=norm,
        signed_search=signed_search,
        layer=layer,
        smoothing=0.1,
    )
    terms = tla(model, batch, progress=0.5, rng=rng)
    total, parts = expected(model, batch, tla)
    assert {name: part.item() for name, part in terms.parts.items()} == pytest.approx(parts, rel=1e-10)
    assert terms.total.item() == pytest.approx(total, rel=1e-10)


def test_every_option_changes_the_total_on_these_samples():
    """Otherwise the test above would pass also if an option were ignored."""
    model, batch = by_hand.network(), by_hand.samples()
    varied = [
        {},
        {"anchor": "clean"},
        {"positive": "copy"},
        {"positive": "both"},
        {"positive": "copy", "copy_margin": 0.9},
        {"positive": "copy", "matching": 1.0},
        {"norm": "mean_square"},
        {"signed_search": True},
        {"layer": "logits"},
        {"layer": "encoder.0"},
        {"margin": 0.2},
        {"lambda1": 0.7},
        {"lambda2": 0.1},
        {"smoothing": 0.1},
    ]
    totals = [expected(model, batch, method(noise="none", **options))[0] for options in varied]
    assert len({round(total, 9) for total in totals}) == len(varied)


def test_defaults_are_those_of_the_paper():
    tla = method()
    chosen = (tla.anchor, tla.positive, tla.negative, tla.noise, tla.norm, tla.signed_search, tla.layer)
    assert chosen == ("adversarial", "class", "nearest", "images", "length", False, None)
    assert (tla.lambda1, tla.lambda2, tla.margin, tla.pool) == (0.5, 0.001, 0.05, 50)  # for MNIST


def test_hand_computed_example(rng):
    # features and logits are the inputs and eps is 0: anchor (1, 0), positive (0, 1), negative (1, 0)
    one = torch.tensor([[1.0, 0.0]]).double()
    pool = Batch(torch.tensor([[1.0, 0.0], [0.0, 1.0]]).double(), torch.tensor([1, 1]), torch.arange(2))
    batch = Batch(one, torch.tensor([0]), torch.tensor([0]), one.flip(1), pool)
    model = nn.Sequential(nn.Linear(2, 2, bias=False)).double()
    nn.init.eye_(model[0].weight)
    terms = TLA(attack=by_hand.Shift(threat=by_hand.threat(0.0)))(model, batch, progress=0.5, rng=rng)
    # distance 1 to the positive, 0 to the negative, margin 0.05; three features of length one
    assert terms.parts["triplet"].item() == pytest.approx(1.05)
    assert terms.parts["triplet_norm"].item() == pytest.approx(3.0)
    total = math.log(1 + math.exp(-1)) + 0.5 * 1.05 + 0.001 * 3
    assert terms.total.item() == pytest.approx(total, rel=1e-12)


@pytest.mark.parametrize("positive", ["class", "copy", "both"])
@pytest.mark.parametrize("anchor", ["adversarial", "clean"])
def test_random_negatives_are_pool_samples_of_another_class(anchor, positive):
    model, batch = by_hand.network(), by_hand.samples()
    tla = method(negative="random", noise="none", anchor=anchor, positive=positive, margin=0.3)
    passes = by_hand.Passes().watch(model)
    terms = tla(model, batch, progress=0.5, rng=Rng(5))
    assert all(passes.training)  # no forward pass in eval mode: there is no search
    adversarial = by_hand.embed(model, passes.x[0])
    negatives = [x for x in passes.x if all((row == batch.pool.x).all(1).any() for row in x)]
    assert len(negatives) == (2 if positive == "both" and anchor == "clean" else 1)
    for x in negatives:
        labels = batch.pool.y[[int((row == batch.pool.x).all(1).nonzero()) for row in x]]
        assert (labels != batch.y).all()
    for i, (name, x) in enumerate(cleans(batch, positive).items()):
        clean, n = by_hand.embed(model, x), by_hand.embed(model, negatives[min(i, len(negatives) - 1)])
        a, p = (adversarial, clean) if anchor == "adversarial" else (clean, adversarial)
        assert terms.parts[name].item() == pytest.approx(by_hand.triplet(a, p, n, 0.3), rel=1e-10)
        assert terms.parts[f"{name}_norm"].item() == pytest.approx(by_hand.norm_term(a, p, n, "length"), rel=1e-10)


def test_random_negatives_are_uniform_over_the_other_classes():
    model, batch = by_hand.network(), by_hand.samples()
    passes = by_hand.Passes().watch(model)
    tla = method(negative="random", noise="none")
    for seed in range(400):
        tla(model, batch, progress=0.5, rng=Rng(seed))
    drawn = [x[0] for x in passes.x[2::3]]  # the first sample has class 0; five samples of the pool have another
    counts = Counter(int((row == batch.pool.x).all(1).nonzero()) for row in drawn)
    assert sorted(counts) == [1, 2, 3, 5, 6]
    assert all(abs(count - 80) < 4 * math.sqrt(400 * 0.2 * 0.8) for count in counts.values())


@pytest.mark.parametrize("negative", ["nearest", "random"])
def test_pool_without_another_class_is_refused(negative, rng):
    batch = by_hand.samples()
    pool = Batch(batch.pool.x[:2], torch.tensor([1, 1]), torch.arange(2))
    poor = Batch(batch.x, batch.y, batch.index, batch.positive, pool)
    with pytest.raises(ValueError, match="no sample of another class"):
        method(negative=negative)(by_hand.network(), poor, progress=0.5, rng=rng)


def noise_of(noisy, clean):
    """The largest change of each sample, after checking that it is inside the ball and the box."""
    assert by_hand.threat().contains(noisy, clean).all()
    return (noisy - clean).abs().amax(1)


@pytest.mark.parametrize("positive", ["class", "copy", "both"])
@pytest.mark.parametrize("noise", ["images", "copy", "none"])
@pytest.mark.parametrize("anchor", ["adversarial", "clean"])
def test_noise_is_added_to_the_chosen_samples_and_inside_the_threat(anchor, noise, positive, rng):
    model, batch = by_hand.network(), by_hand.samples()
    passes = by_hand.Passes().watch(model)
    method(noise=noise, positive=positive, anchor=anchor)(model, batch, progress=0.5, rng=rng)
    trained = [x for x, training in zip(passes.x, passes.training, strict=True) if training]
    searched = [x for x, training in zip(passes.x, passes.training, strict=True) if not training]
    assert torch.equal(trained[0], by_hand.shifted(batch.x))  # the attack is given the sample without noise
    moved = noise_of(searched[1], batch.pool.x) > 0
    assert moved.all() if noise == "images" else not moved.any()
    found = [x for x in trained[1:] if all((row == searched[1]).all(1).any() for row in x)]
    rest = [x for x in trained[1:] if not any(x is other for other in found)]
    for (name, clean), x in zip(cleans(batch, positive).items(), rest, strict=True):
        moved = noise_of(x, clean) > 0
        wanted = noise == "images" or (noise == "copy" and name == "copy_triplet")
        assert moved.all() if wanted else not moved.any()


def test_noise_is_uniform_in_the_eps_ball(rng):
    x = torch.full((400, 4), 0.5).double()
    y = torch.arange(400) % 2
    batch = Batch(x, y, torch.arange(400), x, Batch(x, y, torch.arange(400)))
    model = by_hand.network()
    passes = by_hand.Passes().watch(model)
    method(noise="images", positive="both")(model, batch, progress=0.5, rng=rng)
    noises = [(passes.x[i] - 0.5) / by_hand.EPS for i in (1, 3, 5)]  # positives, pool (searched), copies
    for noise in noises:
        assert noise.abs().max() <= 1 + 1e-9
        assert noise.mean().item() == pytest.approx(0, abs=4 / math.sqrt(3 * noise.numel()))
        assert noise.square().mean().item() == pytest.approx(1 / 3, abs=4 * math.sqrt(4 / 45 / noise.numel()))
    assert not any(torch.equal(a, b) for i, a in enumerate(noises) for b in noises[:i])


@pytest.mark.parametrize(("progress", "share"), [(0.0, 0.0), (0.25, 0.5), (0.5, 1.0)])
def test_noise_grows_with_eps_during_warmup(progress, share, rng):
    model, batch = by_hand.network(), by_hand.samples()
    passes = by_hand.Passes().watch(model)
    method(warmup=0.5, positive="both")(model, batch, progress=progress, rng=rng)
    for i, clean in ((1, batch.positive), (3, batch.pool.x), (5, batch.x)):
        size = (passes.x[i] - clean).abs().max() / by_hand.EPS
        assert share / 2 <= size <= share * (1 + 1e-9)


@pytest.mark.parametrize("noise", ["images", "copy"])
def test_noise_changes_the_loss(noise, rng):
    model, batch = by_hand.network(), by_hand.samples()
    quiet, loud = (method(positive="copy", noise=n)(model, batch, progress=0.5, rng=rng) for n in ("none", noise))
    assert quiet.parts["copy_triplet"] != loud.parts["copy_triplet"]


@pytest.mark.parametrize(
    ("positive", "anchor", "count"),
    [
        ("class", "adversarial", 3),
        ("copy", "adversarial", 3),
        ("both", "adversarial", 4),  # anchor, copy, positive, negative: as many as in the authors' code
        ("both", "clean", 5),  # two anchors, so two negatives
    ],
)
def test_every_part_takes_a_separate_pass_with_separate_batch_statistics(positive, anchor, count, rng):
    model, batch = by_hand.batch_norm_network(), by_hand.samples()
    passes = by_hand.Passes().watch(model)
    terms = method(noise="none", positive=positive, anchor=anchor, margin=0.3)(model, batch, progress=0.5, rng=rng)
    assert sum(passes.training) == count
    assert model.encoder[1].num_batches_tracked == count
    adversarial = by_hand.embed(model, by_hand.shifted(batch.x))
    for name, x in cleans(batch, positive).items():
        clean = by_hand.embed(model, x)
        a, p = (adversarial, clean) if anchor == "adversarial" else (clean, adversarial)
        seen = by_hand.embed(model, by_hand.shifted(batch.x) if anchor == "adversarial" else x, training=False)
        everyone = by_hand.embed(model, batch.pool.x, training=False)
        chosen = by_hand.nearest(seen, batch.y, everyone, batch.pool.y)
        n = by_hand.embed(model, batch.pool.x[chosen])
        assert terms.parts[name].item() == pytest.approx(by_hand.triplet(a, p, n, 0.3), rel=1e-9)


def test_search_uses_the_running_averages_of_batch_norm(rng):
    """The features of the pool are computed in eval mode, so they depend on the averages and not on the batch."""
    model, batch = by_hand.batch_norm_network(), by_hand.samples()
    chosen = []
    for mean in (0.0, 2.0):
        model.encoder[1].running_mean.fill_(mean)
        passes = by_hand.Passes().watch(model)
        method(noise="none")(model, batch, progress=0.5, rng=rng)
        chosen.append([x for x, training in zip(passes.x, passes.training, strict=True) if training][-1])
    assert not torch.equal(*chosen)


@pytest.mark.parametrize("anchor", ["adversarial", "clean"])
@pytest.mark.parametrize("negative", ["nearest", "random"])
@pytest.mark.parametrize("norm", ["length", "mean_square"])
def test_gradient_includes_every_term(anchor, negative, norm, rng):
    model = by_hand.network()
    tla = method(positive="both", matching=0.5, lambda2=0.1, anchor=anchor, negative=negative, norm=norm)
    gained, promised = by_hand.descend(model, tla, list(model.parameters()), rng)
    assert gained == pytest.approx(promised, rel=1e-3)


def test_duplicating_the_batch_does_not_change_the_total(rng):
    model, batch, tla = by_hand.network(), by_hand.samples(), method(noise="none", positive="both", matching=0.1)
    once, twice = (tla(model, b, progress=0.5, rng=rng).total.item() for b in (batch, by_hand.duplicated(batch)))
    assert once == pytest.approx(twice, rel=1e-12)


@pytest.mark.parametrize(("positive", "wanted"), [("class", True), ("both", True), ("copy", False)])
def test_needs_a_pool_and_positives_unless_only_copies_are_used(positive, wanted):
    assert method(positive=positive, pool=20).needs == Needs(positive=wanted, pool=20, features=True)


def test_copies_alone_need_no_positives(rng):
    batch = by_hand.samples()
    bare = Batch(batch.x, batch.y, batch.index, None, batch.pool)
    assert method(positive="copy")(by_hand.network(), bare, progress=0.5, rng=rng).total.isfinite()


def test_batch_without_positives_or_pool_is_refused(rng):
    batch, model = by_hand.samples(), by_hand.network()
    with pytest.raises(ValueError, match="no positives"):
        method()(model, Batch(batch.x, batch.y, batch.index, None, batch.pool), progress=0.5, rng=rng)
    with pytest.raises(ValueError, match="no pool"):
        method()(model, Batch(batch.x, batch.y, batch.index, batch.positive), progress=0.5, rng=rng)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pool": 0}, "pool is 0"),
        ({"matching": 0.5}, 'positive="copy" or "both"'),
        ({"copy_margin": 0.5}, 'positive="copy" or "both"'),
        ({"anchor": "adv"}, "anchor is 'adv' but it must be one of adversarial, clean"),
        ({"positive": "own"}, "positive is 'own' but it must be one of class, copy, both"),
        ({"negative": "hard"}, "negative is 'hard' but it must be one of nearest, random"),
        ({"noise": "all"}, "noise is 'all' but it must be one of images, copy, none"),
        ({"norm": "l2"}, "norm is 'l2' but it must be one of length, mean_square"),
    ],
)
def test_unknown_or_contradictory_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        method(**options)
