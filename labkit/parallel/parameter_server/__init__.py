"""Given parts of the parameter server: argument checks, shards of the parameters, and messages.

A server has `ServerMessages`, which give it `Request`s of several `Kind`s; a worker has `WorkerMessages`. Both pack the
`Piece`s of a server into a `Shard`.
"""

from labkit.parallel.parameter_server.arguments import (
    check_mode,
    check_num_servers,
    check_push,
    trained_parameters,
)
from labkit.parallel.parameter_server.requests import Kind, Request
from labkit.parallel.parameter_server.server_messages import ServerMessages
from labkit.parallel.parameter_server.shards import Piece, Shard
from labkit.parallel.parameter_server.worker_messages import FinishingWorker, ServerStopped, WorkerMessages

__all__ = [
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
