"""Data between processes, and between machines: one file for each form.

Any code may send these, that of a submission included; reading them executes nothing:

- `frames`: a JSON header and raw bytes behind their lengths, on sockets and pipes.
- `wire`: a value as plain data, tensors and arrays.
- `lines`: lines of JSON, through srun, a pod's log or a pipe.

Only the lab's own processes may send these:

- `datagrams`: JSON messages with file descriptors, on one machine.
- `descriptors`: file descriptors over a stream.
- `pickled`: any Python object; reading one runs code.

The scheduler and its process ranks exchange frames with a text of their own: see
`labkit/clusters/virtual/endpoints/protocol.py`.
"""
