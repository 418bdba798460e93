"""What happens to features, losses and accuracy under attack: one file for each analysis.

An analysis is a function of arrays. It returns a frozen result whose numbers carry 95 % intervals: Wilson intervals of
shares, bootstrap intervals over samples of everything else. Models are measured elsewhere (``holdfast.evaluation``), so
every analysis also takes features that another program computed.
"""
