"""Given parts of the parameter server: argument checks, shards of the parameters, and messages.

A server has `ServerMessages`, which give it `Request`s of several `Kind`s; a worker has `WorkerMessages`. Both pack the
`Piece`s of a server into a `Shard`.
"""

from labkit.course.phase3_multi_node.parameter_server.given.arguments import (
    check_mode,
    check_num_servers,
    check_push,
    trained_parameters,
)
from labkit.course.phase3_multi_node.parameter_server.given.requests import Kind, Request
from labkit.course.phase3_multi_node.parameter_server.given.server_messages import Arriving, ServerMessages
from labkit.course.phase3_multi_node.parameter_server.given.shards import Piece, Shard
from labkit.course.phase3_multi_node.parameter_server.given.worker_messages import (
    FinishingWorker,
    ServerStopped,
    WorkerMessages,
)

__all__ = [
    "Arriving",
    "FinishingWorker",
    "Kind",
    "Piece",
    "Request",
    "ServerMessages",
    "ServerStopped",
    "Shard",
    "WorkerMessages",
    "check_mode",
    "check_num_servers",
    "check_push",
    "trained_parameters",
]
