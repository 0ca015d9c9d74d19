"""The two estimators, and what they are made of: input, prediction, newcomers, files."""

from odcl.estimators.public import ODCLClassifier, ODCLRegressor

__all__ = ["ODCLClassifier", "ODCLRegressor"]
