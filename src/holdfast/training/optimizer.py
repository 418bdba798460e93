"""The optimizer of a recipe."""

from torch import nn
from torch.optim import SGD, Adam, AdamW, Optimizer

from holdfast.contracts import Method
from holdfast.recipes.train import OptimizerConfig


def build_optimizer(config: OptimizerConfig, model: nn.Module, method: Method) -> Optimizer:
    """The optimizer of the parameters of the model and the method, with weight decay on kernels only."""
    modules = [model, method] if isinstance(method, nn.Module) else [model]
    parameters = [p for module in modules for p in module.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.ndim > 1], "weight_decay": config.weight_decay},
        {"params": [p for p in parameters if p.ndim <= 1], "weight_decay": 0.0},
    ]
    if config.name == "sgd":
        return SGD(groups, lr=config.lr, momentum=config.momentum, fused=True)
    return (Adam if config.name == "adam" else AdamW)(groups, lr=config.lr, fused=True)
