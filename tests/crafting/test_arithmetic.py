"""Lower precision: accurate enough for gradients, never trusted to decide whether a sample is fooled."""

import pytest
import torch
from torch import nn

from holdfast import PGD, Classifier, LInf, Rng, Threat, arithmetic
from holdfast.crafting import arithmetic as chosen_by
from holdfast.crafting.view import confirmed, crafting, described
from holdfast.models.classifier import Normalize
from holdfast.models.encoders.madry_cnn import MadryCNN
from holdfast.models.encoders.mlp import MLP
from holdfast.models.encoders.tiny import Tiny

SHAPE = (1, 8, 8)
HAS_BFLOAT16 = chosen_by.has_bfloat16  # as it is, before the tests settle on one arithmetic


def net(encoder: nn.Module, width: int, normalize: nn.Module | None = None) -> Classifier:
    torch.manual_seed(0)
    model = Classifier(encoder, nn.Linear(width, 10), normalize)
    with torch.no_grad():
        for _ in range(3):
            model(torch.rand(16, *SHAPE))
    return model.eval()


@pytest.fixture(params=["tiny", "mlp", "normalized"])
def model(request: pytest.FixtureRequest) -> Classifier:
    if request.param == "mlp":
        return net(MLP(SHAPE, width=32), 32)
    normalize = Normalize((0.4,), (0.3,)) if request.param == "normalized" else None
    tiny = Tiny(SHAPE)
    return net(tiny, tiny.width, normalize)


def test_bfloat16_gives_the_logits_and_gradients_of_the_model_to_its_digits(model: Classifier) -> None:
    x = torch.rand(32, *SHAPE, requires_grad=True)
    own = model(x)
    (wanted,) = torch.autograd.grad(own.logsumexp(1).sum(), x)
    with arithmetic("bfloat16"), crafting(model, Rng(0)) as view, torch.enable_grad():
        assert described(model) == {"folded": True, "arithmetic": "bfloat16"}
        logits = view(x)
        (grad,) = torch.autograd.grad(logits.logsumexp(1).sum(), x)
    assert logits.dtype == grad.dtype == torch.float32
    assert not torch.equal(logits, own)
    assert (logits - own).abs().max() < 0.05 * own.abs().max()
    near = torch.cosine_similarity(grad.flatten(1), wanted.flatten(1))  # a ReLU may fall on the other side
    assert near.mean() > 0.98
    assert near.min() > 0.8


def test_new_weights_are_seen_at_the_next_use(model: Classifier) -> None:
    x = torch.rand(8, *SHAPE)
    for _ in range(2):
        with arithmetic("bfloat16"), crafting(model, Rng(0)) as view:
            assert (view(x) - model(x)).abs().max() < 0.05 * model(x).abs().max()
        with torch.no_grad():
            for tensor in (*model.parameters(), *model.buffers()):
                if tensor.is_floating_point():
                    tensor.mul_(1.5)


def test_a_model_without_batch_norm_is_lowered_too() -> None:
    encoder = MadryCNN((1, 28, 28))
    model = Classifier(encoder, nn.Linear(encoder.width, 10)).eval()
    with arithmetic("bfloat16"):
        assert described(model) == {"folded": True, "arithmetic": "bfloat16"}


def test_a_model_with_tensors_outside_its_layers_stays_as_it_is() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.scale = nn.Linear(64, 10), nn.Parameter(torch.ones(()))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x.flatten(1)) * self.scale

    with arithmetic("bfloat16"):
        assert described(Scaled())["arithmetic"] == "float32"


def test_models_of_other_types_keep_theirs(model: Classifier) -> None:
    with arithmetic("bfloat16"):
        assert described(model.double())["arithmetic"] == "float64"


def test_only_samples_fooled_in_float32_leave_the_attack(model: Classifier) -> None:
    """Near the boundary bfloat16 sees fooled samples that are not: they must be attacked to the end."""
    x = torch.rand(256, *SHAPE)
    y = model(x).argmax(1)
    attack = PGD(threat=Threat(LInf(), 0.1), steps=10)
    taken = torch.zeros(len(x), dtype=torch.int64)

    def watch(rows: object, x_adv: torch.Tensor, loss: torch.Tensor, cost: object) -> None:
        taken[rows.index] += 1  # type: ignore[attr-defined]

    with arithmetic("bfloat16"):
        x_adv = attack(model, x, y, rng=Rng(0), watch=watch)
    fooled = model(x_adv).argmax(1) != y
    assert fooled.any()
    assert fooled[taken < 10].all()


def test_fooled_samples_are_confirmed_in_float32(model: Classifier) -> None:
    x = torch.rand(64, *SHAPE)
    y = model(x).argmax(1)
    y[::2] = (y[::2] + 1) % 10
    said = torch.arange(64) % 4 < 3
    with crafting(model, Rng(0)) as view:
        assert torch.equal(confirmed(view, x, y, said), said)  # full precision is not asked twice
    with arithmetic("bfloat16"), crafting(model, Rng(0)) as view:
        assert torch.equal(confirmed(view, x, y, said), said & (torch.arange(64) % 2 == 0))


def test_bfloat16_is_about_as_strong(model: Classifier) -> None:
    x = torch.rand(512, *SHAPE)
    y = model(x).argmax(1)
    attack = PGD(threat=Threat(LInf(), 0.03), steps=20)
    left = {}
    for name in ("float32", "bfloat16"):
        with arithmetic(name):  # type: ignore[arg-type]
            left[name] = (model(attack(model, x, y, rng=Rng(0))).argmax(1) == y).float().mean().item()
    assert 0 < left["float32"] < 1
    assert abs(left["float32"] - left["bfloat16"]) < 0.03


def test_auto_asks_the_hardware_and_a_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu, has, lacks = torch.device("cpu"), {"avx512_bf16": True}, {"avx2": True}
    monkeypatch.setattr(chosen_by, "has_bfloat16", HAS_BFLOAT16)
    for name in ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA"):
        monkeypatch.delenv(name, raising=False)
    for able, ratio, dtype in (
        (has, 4.0, torch.bfloat16),
        (has, 0.7, torch.float32),
        (has, 0.0, torch.float32),
        (lacks, 4.0, torch.float32),
    ):
        monkeypatch.setattr(torch.cpu, "get_capabilities", lambda able=able: able)
        monkeypatch.setattr(chosen_by, "trial", lambda ratio=ratio: ratio)
        assert chosen_by.chosen(cpu) == dtype
        with arithmetic("float32"):
            assert chosen_by.chosen(cpu) == torch.float32


def test_bfloat16_is_refused_if_it_kills_and_allowed_if_it_is_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chosen_by, "advertises_bfloat16", lambda: True)
    with arithmetic("bfloat16"):
        monkeypatch.setattr(chosen_by, "trial", lambda: 0.5)
        assert chosen_by.chosen(torch.device("cpu")) == torch.bfloat16
        monkeypatch.setattr(chosen_by, "trial", lambda: 0.0)
        with pytest.raises(ValueError, match="a trial of it died"):
            chosen_by.chosen(torch.device("cpu"))


def test_the_choice_ends_with_its_context_also_after_an_exception() -> None:
    before = chosen_by.chosen(torch.device("cpu"))
    with pytest.raises(KeyError), arithmetic("bfloat16"):
        raise KeyError
    assert chosen_by.chosen(torch.device("cpu")) == before


def test_other_names_are_refused() -> None:
    with pytest.raises(ValueError, match="one of auto, float32, bfloat16"), arithmetic("half"):  # type: ignore[arg-type]
        pass
