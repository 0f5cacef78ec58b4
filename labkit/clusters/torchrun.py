"""The environment that torchrun gives a rank, the same on every cluster."""

from __future__ import annotations

FOR_ALL = {
    "TORCHELASTIC_SIGNALS_TO_HANDLE": "SIGTERM,SIGINT,SIGHUP,SIGQUIT",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
    # empty is torch's own value for no error file: the rank itself reports its errors to the lab
    "TORCHELASTIC_ERROR_FILE": "",
}
"""Environment variables of every rank under torchrun."""


def environment(
    rank: int, *, nnodes: int, nproc_per_node: int, master_addr: str, master_port: int, run_id: str
) -> dict[str, str]:
    """The variables that torch.distributed.run sets for global rank `rank`; ranks are numbered node by node."""
    node, local_rank = divmod(rank, nproc_per_node)
    settings = {
        "RANK": rank,
        "LOCAL_RANK": local_rank,
        "WORLD_SIZE": nnodes * nproc_per_node,
        "LOCAL_WORLD_SIZE": nproc_per_node,
        "GROUP_RANK": node,
        "GROUP_WORLD_SIZE": nnodes,
        "ROLE_NAME": "default",
        "ROLE_RANK": rank,
        "ROLE_WORLD_SIZE": nnodes * nproc_per_node,
        "MASTER_ADDR": master_addr,
        "MASTER_PORT": master_port,
        "TORCHELASTIC_RESTART_COUNT": 0,
        "TORCHELASTIC_MAX_RESTARTS": 0,
        "TORCHELASTIC_RUN_ID": run_id,
        "TORCHELASTIC_USE_AGENT_STORE": "False",
        **FOR_ALL,
    }
    return {name: str(value) for name, value in settings.items()}
