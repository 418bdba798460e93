"""Models, optimizers and batches built from recipes."""

import pytest
import torch
from torch import nn

from holdfast.contracts import Batch, Needs
from holdfast.data.augment import Augment, Flip, PadCrop, Saturation
from holdfast.methods.plain import Plain
from holdfast.recipes.assemble import build_model
from holdfast.recipes.tables.model import ModelConfig
from holdfast.recipes.tables.train import OptimizerConfig
from holdfast.rng import Rng
from holdfast.training.batches import Batches
from holdfast.training.optimizer import build_optimizer
from tiny_study import same, toy

TINY = ModelConfig(encoder="tiny", channels=2, width=5)


def test_weights_depend_on_the_seed_alone() -> None:
    before = torch.get_rng_state()
    first = build_model(TINY, (1, 8, 8), 10, 0).state_dict()
    torch.rand(3)
    assert same(first, build_model(TINY, (1, 8, 8), 10, 0).state_dict())
    assert not same(first, build_model(TINY, (1, 8, 8), 10, 1).state_dict())
    torch.set_rng_state(before)
    build_model(TINY, (1, 8, 8), 10, 0)
    assert torch.equal(torch.get_rng_state(), before)


def test_new_model_has_initial_batch_norm_statistics() -> None:
    model = build_model(TINY, (1, 8, 8), 10, 0)
    assert all(module.training for module in model.modules())
    assert all(int(value) == 0 for name, value in model.state_dict().items() if name.endswith("num_batches_tracked"))


def test_normalization_is_part_of_the_model() -> None:
    config = ModelConfig(encoder="tiny", channels=2, width=5, mean=(0.5,), std=(0.25,))
    plain, normal = build_model(TINY, (1, 8, 8), 10, 0).eval(), build_model(config, (1, 8, 8), 10, 0).eval()
    x = torch.rand(3, 1, 8, 8)
    assert torch.allclose(normal(x), plain((x - 0.5) / 0.25))


def test_per_image_normalization_is_part_of_the_model() -> None:
    config = ModelConfig(encoder="tiny", channels=2, width=5, per_image=True)
    plain, normal = build_model(TINY, (1, 8, 8), 10, 0).eval(), build_model(config, (1, 8, 8), 10, 0).eval()
    x = torch.rand(3, 1, 8, 8)
    flat = x.flatten(1)
    standard = (flat - flat.mean(1, keepdim=True)) / flat.std(1, correction=0, keepdim=True)
    assert torch.allclose(normal(x), plain(standard.reshape(x.shape)), atol=1e-5)
    with pytest.raises(ValueError, match="two normalizations"):
        ModelConfig(encoder="tiny", per_image=True, mean=(0.5,), std=(0.5,))


def test_options_reach_the_encoder() -> None:
    config = ModelConfig(encoder="wrn", width=64, depth=10, form="madry", activation="softplus")
    modules = list(build_model(config, (3, 8, 8), 10, 0).modules())
    assert any(isinstance(module, nn.Softplus) for module in modules)
    assert not any(isinstance(module, nn.Conv2d) and module.kernel_size == (1, 1) for module in modules)
    with pytest.raises(ValueError, match=r"encoder 'mlp' has no form; leave model\.form out"):
        build_model(ModelConfig(encoder="mlp", form="madry"), (1, 8, 8), 10, 0)


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
@pytest.mark.parametrize(
    ("config", "shape", "expected"),
    [
        (ModelConfig(encoder="tiny"), (64,), r"model 'tiny' cannot be made for samples of shape \(64,\)"),
        (ModelConfig(encoder="lenet"), (1, 2, 2), r"model 'lenet' cannot be made for samples of shape \(1, 2, 2\)"),
        (ModelConfig(encoder="mlp", width=4, mean=(0.5,), std=(1.0,)), (6,), "model 'mlp' cannot be made for samples"),
        (
            ModelConfig(encoder="tiny", mean=(0.5,) * 3, std=(1.0,) * 3),
            (1, 8, 8),
            "model 'tiny' cannot be made for samples",
        ),
        (ModelConfig(encoder="tiny", depth=3), (1, 8, 8), "encoder 'tiny' has no depth; leave model.depth out"),
    ],
)
def test_models_that_do_not_fit_the_data_are_refused(
    config: ModelConfig, shape: tuple[int, ...], expected: str
) -> None:
    with pytest.raises(ValueError, match=expected) as refusal:
        build_model(config, shape, 3, 0)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("name", ["adam", "adamw", "sgd"])
def test_weight_decay_acts_on_kernels_only(name: str) -> None:
    model = build_model(TINY, (1, 8, 8), 10, 0)
    optimizer = build_optimizer(OptimizerConfig(name=name, lr=0.1, weight_decay=0.5), model, Plain())  # type: ignore[arg-type]
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)  # with zero gradients only weight decay changes weights
    optimizer.step()
    for name_, p in model.named_parameters():
        kernel = p.ndim > 1
        assert torch.equal(p, before[name_]) != kernel, name_
        assert not kernel or torch.equal((p - before[name_]).sign(), -before[name_].sign())
    assert kernels_and_others(model) == (3 + 1, 4 + 3 * 2)


def kernels_and_others(model: nn.Module) -> tuple[int, int]:
    kernels = [p for p in model.parameters() if p.ndim > 1]
    return len(kernels), len(list(model.parameters())) - len(kernels)


def test_momentum_is_given_to_sgd() -> None:
    optimizer = build_optimizer(OptimizerConfig(name="sgd", momentum=0.7), nn.Linear(2, 2), Plain())
    assert [group["momentum"] for group in optimizer.param_groups] == [0.7, 0.7]


class Own(nn.Linear):
    """A method with parameters."""

    needs = Needs()


def test_parameters_of_the_method_are_trained_too() -> None:
    model, method = nn.Linear(2, 2), Own(3, 3)
    frozen = nn.Linear(2, 2).requires_grad_(False)
    model.add_module("frozen", frozen)
    optimizer = build_optimizer(OptimizerConfig(), model, method)  # type: ignore[arg-type]
    ids = {id(p) for group in optimizer.param_groups for p in group["params"]}
    assert ids == {id(p) for p in (model.weight, model.bias, method.weight, method.bias)}


def test_batches_hold_what_the_method_needs() -> None:
    data, cpu, which = toy(), torch.device("cpu"), torch.tensor([4, 0, 9])
    bare = Batches(data.train, 3, Needs(), 0, cpu).batch(0, which)
    assert bare.positive is None
    assert bare.pool is None
    assert torch.equal(bare.x, data.train.x[which])
    assert torch.equal(bare.index, data.train.index[which])
    full = Batches(data.train, 3, Needs(positive=True, pool=5), 0, cpu).batch(0, which)
    assert full.positive is not None
    assert full.pool is not None
    assert len(full.pool) == 5
    for x, label, original in zip(full.positive, full.y, full.x, strict=True):
        position = (data.train.x == x).flatten(1).all(1).nonzero().item()
        assert data.train.y[position] == label
        assert not torch.equal(x, original)


AUGMENT = Augment(pad_crop=PadCrop(pad=1), flip=Flip())
EVERYTHING = Needs(positive=True, pool=5)


def batches(augment: Augment = AUGMENT, seed: int = 0) -> Batches:
    return Batches(toy().train, 3, EVERYTHING, seed, torch.device("cpu"), augment)


def pool(batch: Batch) -> Batch:
    assert batch.pool is not None
    return batch.pool


def test_every_image_of_a_step_is_augmented_by_its_role_its_step_and_its_index() -> None:
    which = torch.tensor([4, 0, 9])
    for step in range(3):
        plain, changed = batches(Augment()).batch(step, which), batches().batch(step, which)
        rng = Rng(0).fork("augment")
        x = AUGMENT(plain.x, rng.fork("batch").fork(step).at(plain.index))
        assert torch.equal(changed.x, x)
        assert plain.positive is not None
        assert changed.positive is not None
        places = [(toy().train.x == one).flatten(1).all(1).nonzero()[0, 0] for one in plain.positive]
        index = toy().train.index[torch.stack(places)]
        assert torch.equal(changed.positive, AUGMENT(plain.positive, rng.fork("positive").fork(step).at(index)))
        seen, clean = pool(changed), pool(plain)
        assert torch.equal(seen.x, AUGMENT(clean.x, rng.fork("pool").fork(step).at(clean.index)))
        assert torch.equal(seen.y, clean.y)
        assert torch.equal(changed.y, plain.y)
        assert torch.equal(changed.index, plain.index)
        assert not any(
            torch.equal(a, b) for a, b in ((seen.x, clean.x), (changed.x, plain.x), (changed.positive, plain.positive))
        )


def test_augmentation_of_a_sample_does_not_depend_on_its_batch() -> None:
    together = batches().batch(7, torch.arange(12)).x
    for position in range(12):
        assert torch.equal(batches().batch(7, torch.tensor([position])).x[0], together[position])
    assert torch.equal(batches().batch(7, torch.arange(11, -1, -1)).x.flip(0), together)


def test_augmentation_differs_between_steps_seeds_and_roles() -> None:
    which = torch.arange(30)
    first = batches().batch(0, which).x
    assert torch.equal(first, batches().batch(0, which).x)
    assert not torch.equal(first, batches().batch(1, which).x)
    assert not torch.equal(first, batches(seed=1).batch(0, which).x)
    whole = Batches(toy().train, 3, Needs(pool=30), 0, torch.device("cpu"), AUGMENT).batch(0, which)
    assert not torch.equal(pool(whole).x[pool(whole).index.argsort()], first)  # the same samples in two roles


@pytest.mark.parametrize(
    ("augment", "expected"),
    [
        (Augment(saturation=Saturation()), "but saturation needs colors"),
        (Augment(pad_crop=PadCrop(pad=9, mode="reflect")), "9 pixels cannot be reflected"),
    ],
)
def test_augmentation_that_does_not_fit_is_refused_before_the_first_step(augment: Augment, expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        batches(augment)
