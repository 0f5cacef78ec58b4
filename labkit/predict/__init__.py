"""Step time, memory, scaling and cost from closed forms. No ranks are run here."""

from labkit.predict.constants import COMPONENTS, FITTED, Constants
from labkit.predict.costs.schedules import idle_seconds
from labkit.predict.costs.state_bytes import STATE_BYTES
from labkit.predict.describe import MLP, MODELS, Transformer, count, model, resnet
from labkit.predict.plan import Plan
from labkit.predict.prediction import Prediction, PredictionRange
from labkit.predict.ranges import OneOf, Range
from labkit.predict.running import checkpoint_interval, goodput, run, scaling, with_stragglers
from labkit.predict.search import search
from labkit.predict.step import predict, predict_range
from labkit.predict.term import Term

__all__ = [
    "COMPONENTS", "FITTED", "MLP", "MODELS", "STATE_BYTES", "Constants", "OneOf", "Plan", "Prediction",
    "PredictionRange", "Range", "Term", "Transformer", "checkpoint_interval", "count", "goodput", "idle_seconds",
    "model", "predict", "predict_range", "resnet", "run", "scaling", "search", "with_stragglers",
]  # fmt: skip
