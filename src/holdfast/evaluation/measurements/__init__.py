"""Measurements: clean prediction, attacks, certificates, features and landscapes, each as columns and arrays."""
