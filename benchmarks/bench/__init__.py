"""holdfast beside its peers: the parts that benchmarks/attacks.py is made of."""
