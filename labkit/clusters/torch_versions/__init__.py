"""All that depends on torch's version: the private parts of c10d that the clusters hook into. 2.11 to 2.14.

torch 2.13 calls `all_gather_single` and `reduce_scatter_single` what older versions call `_allgather_base` and
`_reduce_scatter_base`; process groups written in Python define both names.
"""

from labkit.clusters.torch_versions.agents import poll_rendezvous_every, start_workers_with
from labkit.clusters.torch_versions.groups import (
    GroupMaker,
    ProcessGroup,
    Work,
    count_groups_from,
    count_inits_from,
    default_group,
    dress_group,
    follow_groups,
    forget_inits,
    gloo_group,
    group_count,
    groups_of_this_rank,
    inits_of_this_rank,
    is_coalescing,
    make_groups_with,
    reduction_name,
    rendezvous_with,
    replace_function,
    replace_groups_with,
    run_after_backward,
    split_groups_of_nccl,
)
from labkit.clusters.torch_versions.ranks import (
    checkpoints_in_own_thread,
    refuse_cuda,
    tensor_handlers_per_thread,
    worlds_per_thread,
)
from labkit.clusters.torch_versions.rehearsal import rehearse_groups
from labkit.clusters.torch_versions.tensors import (
    all_ddp,
    ddp_afresh,
    ddp_of_shapes,
    fake_tensor,
    meshes_apart,
    no_modes,
    objects_without_modes,
    plain_tensors,
    shapes_of_dtensors_apart,
)

__all__ = [
    "GroupMaker",
    "ProcessGroup",
    "Work",
    "all_ddp",
    "checkpoints_in_own_thread",
    "count_groups_from",
    "count_inits_from",
    "ddp_afresh",
    "ddp_of_shapes",
    "default_group",
    "dress_group",
    "fake_tensor",
    "follow_groups",
    "forget_inits",
    "gloo_group",
    "group_count",
    "groups_of_this_rank",
    "inits_of_this_rank",
    "is_coalescing",
    "make_groups_with",
    "meshes_apart",
    "no_modes",
    "objects_without_modes",
    "plain_tensors",
    "poll_rendezvous_every",
    "reduction_name",
    "refuse_cuda",
    "rehearse_groups",
    "rendezvous_with",
    "replace_function",
    "replace_groups_with",
    "run_after_backward",
    "shapes_of_dtensors_apart",
    "split_groups_of_nccl",
    "start_workers_with",
    "tensor_handlers_per_thread",
    "worlds_per_thread",
]
