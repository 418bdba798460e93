"""The classifiers of a study as subjects: trained models, own models and nearest neighbors."""
