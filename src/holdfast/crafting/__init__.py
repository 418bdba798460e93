"""The fast frozen view of a model that attacks use."""
