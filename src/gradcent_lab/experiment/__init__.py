"""Stage 1, describe: what an experiment, a run and a study are, and how a user's own experiment is read."""

from gradcent_lab.experiment.spec import Experiment, Measurement

__all__ = ["Experiment", "Measurement"]
