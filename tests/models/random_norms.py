"""Networks whose batch norms differ from each other, as after training."""

from torch import nn


def randomized(net: nn.Module) -> nn.Module:
    """Randomize weights and running statistics of every batch norm, so that swapped layers change the outputs."""
    for part in net.modules():
        if isinstance(part, nn.BatchNorm2d):
            for tensor in (part.weight.data, part.running_var):
                tensor.uniform_(0.5, 2)
            for tensor in (part.bias.data, part.running_mean):
                tensor.normal_()
    return net.eval()
