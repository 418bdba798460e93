"""The fast frozen view of a model that attacks use.

What happens between ``attack(model, x, y, rng=rng)`` and a gradient, in this order:

1. ``view.crafting`` unwraps what training put around the network (DDP, AveragedModel, Mixed) where the wrapper adds
   nothing to an eval pass, and freezes it (``view.frozen``): eval mode, no parameter gradients, randomness from
   ``rng``. Everything is restored afterwards. With ``using("module")`` the steps 2 to 6 are skipped.
2. ``arithmetic.chosen`` decides between float32 and bfloat16; what the processor can do is asked in ``processor``, by
   a trial in a process of its own (``_trial``) where its claims cannot be trusted.
3. ``folding.folded`` looks up the fast form of this model. It is made again if modules, attributes or shapes changed:

   a. ``tracing.trace`` records the graph of the network with torch.fx and refuses what a trace would get wrong
      (state, random numbers, instance norm); hooks, replaced forward passes and torch.jit are refused before.
   b. ``folding`` folds each batch norm into the layer before it, and gives layers copies in bfloat16 where that is
      the arithmetic. Convolutions get channels-last weights.
   c. ``fused.join`` replaces each sequence of known layers by one autograd function with a custom backward. The
      layers are in ``layers``; ``blocks`` computes the gradient of images with one to four channels.

   A model without a fast form is called as it is, and the reason goes to the records (``view.described``).
4. ``Folded.prepare`` folds the present weights anew unless ``unchanged`` finds them unchanged, and packs large linear
   weights for oneDNN where the call has many passes (``packed``).
5. The attack calls ``outputs(x)`` of the view. When the form is new and from time to time after that, the outputs and
   input gradients of a few samples are compared with those of the model itself (``view._Fast``); where they differ,
   the model is used for the rest of the call. When depends on the call and its ``rng`` alone, so that a resumed run
   repeats it.
6. The forward pass runs the fused graph and returns float32 features and logits. The attack computes its loss, and
   ``torch.autograd.grad`` runs the custom backward down to the input gradient: parameters get none.
7. A sample that seems fooled in lower precision is confirmed by the model itself (``view.confirmed``).

How many samples pass at a time is decided in ``microbatch``. Judging never uses any of this: it calls the model.
"""

from holdfast.crafting.view import Mode, confirmed, crafting, described, frozen, unwrapped, using

__all__ = ["Mode", "confirmed", "crafting", "described", "frozen", "unwrapped", "using"]
