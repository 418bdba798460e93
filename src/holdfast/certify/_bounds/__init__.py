"""Linear bounds of networks: interval bound propagation (IBP) and CROWN.

``network`` turns a module into a list of operations, as ``reading`` finds them in its trace and ``layers`` knows them.
``operations`` are those that can be bounded, ``region`` the inputs that are considered, ``propagate`` the bounds, and
``search`` the largest radius that they prove.

**Rounding.** Bounds hold for the network in real numbers and as it is executed in float32, with the sums of every layer
added up in any order (not by Winograd or Fourier transforms, and not in TF32, which torch allows for convolutions on
some GPUs unless ``torch.backends.cudnn.allow_tf32 = False``). Execution is modeled as an adversary: an operation with
n rounding errors per output returns y + d with |d| <= g_n (|W| |x| + |b|), g_n = n u / (1 - n u), u = 2^-24 (Higham
2002, chapter 3), where |x| is bounded by the intervals of its input. These d enter every bound like a bias that is not
known, at the worst. Where a sum may overflow float32, d is infinite, and nothing is proved.

The bounds themselves are computed in float64, whose rounding errors the same terms cover. Substituting y = W x + b into
a·y + c, the computed coefficients differ from those of aᵀW by at most g'_m |aᵀ| |W|, m the number of outputs and
u' = 2^-53 in g'. A substitution by coefficients that are slightly wrong stays valid after a constant g'_m |aᵀ| |W| |x|
is subtracted, and |aᵀ| d, which is subtracted, is 2^29 n / m times as large. The same holds for the products with
biases and for intercepts of relaxations, which are at most |x| times the slope. The allowance is enlarged by one
percent to cover all of these; ``Region.lower`` subtracts the rounding errors of its own sum.
"""
