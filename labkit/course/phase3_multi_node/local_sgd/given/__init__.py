"""Given parts of the exercise on local SGD: argument checks, tensors packed into one message, equal starts, speeds.

message = Message(tensors)           # message.flat: all elements, and a 1; message.views(): its parts in their shapes
start_equal(parameters, group)       # parameters as on the group's first rank
exchange_speeds(speed, group)        # the speeds of all ranks
gradients(parameters)                # their `grad`, zeros where there is none
widened(parameter)                   # a copy in float32 or wider
"""

from labkit.course.phase3_multi_node.local_sgd.given.arguments import (
    check_measurement,
    check_outer,
    check_period,
    check_speeds,
    check_weight,
    rank_and_size,
    trained_parameters,
)
from labkit.course.phase3_multi_node.local_sgd.given.messages import (
    Message,
    exchange_speeds,
    gradients,
    start_equal,
    widened,
)

__all__ = [
    "Message",
    "check_measurement",
    "check_outer",
    "check_period",
    "check_speeds",
    "check_weight",
    "exchange_speeds",
    "gradients",
    "rank_and_size",
    "start_equal",
    "trained_parameters",
    "widened",
]
