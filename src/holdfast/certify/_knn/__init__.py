"""Lower bounds and attacks for K-nearest-neighbor classifiers under a Mahalanobis metric.

- ``space``: the training points under the metric, their distances and labels
- ``min_norm``: a batched solver for the minimum-norm vector under linear constraints, with proved lower bounds
- ``cells``: the shortest perturbation into an intersection of Voronoi half-spaces, as such a problem
- ``exact``: the exact radius for K = 1
- ``vote_bound``: a lower bound on the radius for K > 1
- ``attack``: short adversarial perturbations for K > 1, the upper bound
"""
