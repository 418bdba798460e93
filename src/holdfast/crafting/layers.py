"""The layers that can be fused, each with its forward and its custom backward."""

from collections.abc import Callable
from typing import Protocol, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from holdfast.crafting import blocks
from holdfast.crafting.packed import Products, worth_packing
from holdfast.geometry import length
from holdfast.models.heads import hypersphere, linear

_aten = torch.ops.aten


class Raised(nn.Module):
    """Casts to float32."""

    def forward(self, x: Tensor) -> Tensor:
        return x.float()


VIEWS = (nn.Flatten, nn.Identity, nn.Dropout, nn.Dropout2d)  # in eval mode they return a view of their input


class Layer(Protocol):
    """``forward`` returns the output and the tensors that ``backward`` needs to compute the input gradient.

    ``backward`` works in place on the gradient it is given if it ``may_overwrite`` it. In grad mode ``forward``
    consists of differentiable operations, and ``backward`` is not called.
    """

    def forward(self, x: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]: ...
    def backward(self, grad: Tensor, saved: tuple[Tensor, ...], may_overwrite: bool) -> Tensor: ...


def _where_positive(grad: Tensor, y: Tensor, may_overwrite: bool) -> Tensor:
    """The input gradient of a ReLU whose output is y."""
    if may_overwrite:
        _aten.threshold_backward.grad_input(grad, y, 0, grad_input=grad)
        return grad
    return cast(Tensor, _aten.threshold_backward.default(grad, y, 0))


class Linear:
    """A linear layer, with the ReLU after it if there is one."""

    def __init__(self, module: nn.Linear, relu: bool) -> None:
        self.module, self.relu = module, relu
        self.refresh()

    def refresh(self) -> None:
        large = worth_packing(self.module.weight)
        self.plain = Products(self.module.weight, packed=False) if large else None
        self.packed: Products | None = None  # made for the first call with many passes
        self.products = self.plain

    def pack(self, wanted: bool) -> None:
        if wanted and self.plain is not None and self.packed is None:
            self.packed = Products(self.module.weight, packed=True)
        self.products = self.packed if wanted else self.plain

    def forward(self, x: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        if self.products is not None and not torch.is_grad_enabled():
            y = self.products.forward(x, self.module.bias, self.relu)
        else:
            y = F.linear(x, self.module.weight, self.module.bias)
            y = y.relu_() if self.relu else y
        return y, ((y,) if self.relu else ())

    def backward(self, grad: Tensor, saved: tuple[Tensor, ...], may_overwrite: bool) -> Tensor:
        if saved:
            grad = _where_positive(grad, saved[0], may_overwrite)
        return grad @ self.module.weight if self.products is None else self.products.input_gradient(grad)


class Sphere:
    """A hypersphere head (scaled cosines); the directions of the classes are computed once for all passes."""

    def __init__(self, module: hypersphere.Hypersphere) -> None:
        self.module = module
        self.least = length(module.weight.new_zeros(1, module.in_features))  # the length of a zero feature
        self.refresh()

    def refresh(self) -> None:
        self.directions = self.module.scale * self.module.directions().detach()

    def forward(self, x: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        if torch.is_grad_enabled():
            return self.module(x), ()
        along = F.linear(x, self.directions)
        if not self.module.feature_norm:
            return along, ()
        size = torch.linalg.vector_norm(x, dim=-1, keepdim=True).hypot_(self.least)
        return along / size, (x, along, size)  # not the output, which others may overwrite

    def backward(self, grad: Tensor, saved: tuple[Tensor, ...], may_overwrite: bool) -> Tensor:
        if not saved:
            return grad @ self.directions
        x, along, size = saved
        grad = grad / size  # on the few logits, so that the many features need only one product and one sum
        inward = (grad * along).sum(-1, keepdim=True).div_(size).div_(size)
        return (grad @ self.directions).addcmul_(x, inward, value=-1)


class Conv:
    """A 2-D convolution, with the ReLU after it if there is one."""

    def __init__(self, module: nn.Conv2d, relu: bool) -> None:
        self.module, self.relu = module, relu
        self.refresh()

    @torch.no_grad()
    def refresh(self) -> None:
        self.side = blocks.side(self.module)
        self.blocks = blocks.kernel(self.module.weight, self.side) if self.side > 1 else None

    def forward(self, x: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        m = self.module
        if self._whole(x):
            y = F.linear(_by_pixel(x), _by_pixel(m.weight), m.bias)[:, :, None, None]
        else:
            y = F.conv2d(x, m.weight, m.bias, m.stride, m.padding, m.dilation, m.groups)
        return (y.relu_(), (x, y)) if self.relu else (y, (x,))

    def _whole(self, x: Tensor) -> bool:
        """True if the kernel covers the whole image, so that the convolution is one matrix product."""
        m = self.module
        plain = (*m.padding, *m.dilation, m.groups) == (0, 0, 1, 1, 1)
        return plain and x.ndim == 4 and x.shape[2:] == m.kernel_size

    def backward(self, grad: Tensor, saved: tuple[Tensor, ...], may_overwrite: bool) -> Tensor:
        m, x = self.module, saved[0]
        if self.relu:
            grad = _where_positive(grad, saved[1], may_overwrite)
        if x.ndim == 3:  # one image without a batch axis
            grad, x = grad[None], x[None]
        if self._whole(x):
            return (grad.flatten(1) @ _by_pixel(m.weight)).reshape(len(x), *x.shape[2:], x.shape[1]).permute(0, 3, 1, 2)
        if self.blocks is not None and x.shape[2] % self.side == x.shape[3] % self.side == 0:
            found = blocks.image_gradient(grad, self.blocks, m, self.side)
            return found if saved[0].ndim == 4 else found[0]
        shape = (m.stride, m.padding, m.dilation, False, [0], m.groups)
        found, *_ = _aten.convolution_backward(grad, x, m.weight, None, *shape, [True, False, False])
        return cast(Tensor, found if saved[0].ndim == 4 else found[0])


def _by_pixel(images: Tensor) -> Tensor:
    """Images as rows in channels-last order: a view if they are stored so."""
    return images.permute(0, 2, 3, 1).flatten(1)


class Raise:
    """The cast to float32."""

    def forward(self, x: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        return x.float(), (x.new_empty(0),)  # saved for its dtype only

    def backward(self, grad: Tensor, saved: tuple[Tensor, ...], may_overwrite: bool) -> Tensor:
        return grad.to(saved[0].dtype)


class Relu:
    """A ReLU whose input must not be overwritten."""

    def forward(self, x: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        y = F.relu(x)
        return y, (y,)

    def backward(self, grad: Tensor, saved: tuple[Tensor, ...], may_overwrite: bool) -> Tensor:
        return _where_positive(grad, saved[0], may_overwrite)


class MaxPool:
    """Max pooling, with the ReLU after it if there is one."""

    def __init__(self, module: nn.MaxPool2d, relu: bool) -> None:
        m, self.relu = module, relu
        self.settings = _pair(m.kernel_size), _pair(m.stride), _pair(m.padding), _pair(m.dilation), m.ceil_mode

    def forward(self, x: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        y, places = _aten.max_pool2d_with_indices(x, *self.settings)
        return (y.relu_(), (x, places, y)) if self.relu else (y, (x, places))

    def backward(self, grad: Tensor, saved: tuple[Tensor, ...], may_overwrite: bool) -> Tensor:
        x, places = saved[:2]
        if self.relu:
            grad = _where_positive(grad, saved[2], may_overwrite)
        return cast(Tensor, _aten.max_pool2d_with_indices_backward(grad, x, *self.settings, places))


class AvgPool:
    """Average pooling."""

    def __init__(self, module: nn.AvgPool2d) -> None:
        m = module
        shape = _pair(m.kernel_size), _pair(m.stride), _pair(m.padding)
        self.settings = *shape, m.ceil_mode, m.count_include_pad, m.divisor_override

    def forward(self, x: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        return cast(Tensor, _aten.avg_pool2d(x, *self.settings)), (x,)

    def backward(self, grad: Tensor, saved: tuple[Tensor, ...], may_overwrite: bool) -> Tensor:
        return cast(Tensor, _aten.avg_pool2d_backward(grad, *saved, *self.settings))


class Flatten:
    """Flattening, as the module does it."""

    def __init__(self, module: nn.Flatten) -> None:
        self.module = module

    def forward(self, x: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        return cast(Tensor, self.module(x)), (x.data,)  # saved for its shape only, so it may be overwritten

    def backward(self, grad: Tensor, saved: tuple[Tensor, ...], may_overwrite: bool) -> Tensor:
        (x,) = saved
        grad = grad.reshape(x.shape)
        last = x.ndim == 4 and x.is_contiguous(memory_format=torch.channels_last)
        # the memory format is restored here, where the map is small, not before the pooling, where it is large
        return grad.contiguous(memory_format=torch.channels_last) if last else grad


def _pair(size: int | tuple[int, int]) -> tuple[int, int]:
    return (size, size) if isinstance(size, int) else size


_FUSED: dict[type[nn.Module], Callable[..., Layer]] = {  # each is given the module, and whether a ReLU follows
    nn.Linear: Linear,
    linear.Linear: Linear,
    hypersphere.Hypersphere: lambda module, _: Sphere(module),
    nn.Conv2d: Conv,
    nn.MaxPool2d: MaxPool,
    nn.AvgPool2d: lambda module, _: AvgPool(module),
    nn.Flatten: lambda module, _: Flatten(module),
    Raised: lambda *_: Raise(),
}


def plain(module: nn.Module) -> bool:
    """True if a module can be fused."""
    if type(module) is nn.Conv2d:
        return module.padding_mode == "zeros" and not isinstance(module.padding, str)
    if type(module) is nn.MaxPool2d:
        return not module.return_indices
    return type(module) in (*_FUSED, *VIEWS, nn.ReLU)


def by_hand(modules: list[nn.Module]) -> list[Layer]:
    """The fused layers of a sequence of modules."""
    layers: list[Layer] = []
    modules = _pooled_first(modules)
    for module, after in zip(modules, [*modules[1:], None], strict=False):
        relu = type(after) is nn.ReLU  # computed in place by the layer before it
        if type(module) in _FUSED:
            layers.append(_FUSED[type(module)](module, relu))
        elif isinstance(module, nn.ReLU) and not (layers and getattr(layers[-1], "relu", False)):
            layers.append(Relu())
    return layers


def _pooled_first(modules: list[nn.Module]) -> list[nn.Module]:
    """The modules with each ReLU moved behind the max pooling that follows it, where the map is smaller.

    The two commute. It is done only if a later layer computes something new: others may overwrite the output of a
    pooling, but not that of a ReLU, which its backward needs.
    """
    found = list(modules)
    for number in range(1, len(found) - 1):
        relu, pool, *rest = found[number:]
        if type(relu) is nn.ReLU and type(pool) is nn.MaxPool2d and not all(isinstance(m, VIEWS) for m in rest):
            found[number : number + 2] = pool, relu
    return found
