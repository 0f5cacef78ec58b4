import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.testing._internal.distributed._tensor.common_dtensor import DTensorConverter

dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (dist.get_world_size(),))
torch.manual_seed(0)
a, b, c, weight = torch.randn(4, 6), torch.randn(6, 4), torch.randn(4, 6), torch.randn(6)
calls = [
    (torch.add, (a, c)),
    (torch.mm, (a, b)),
    (torch.matmul, (torch.randn(2, 4, 6), b)),
    (torch.bmm, (torch.randn(4, 2, 6), torch.randn(4, 6, 2))),
    (torch.addmm, (torch.randn(4), a, b)),
    (torch.sum, (a, 0)),
    (torch.mean, (a, 1)),
    (torch.amax, (a, 1)),
    (torch.var, (a, 1)),
    (torch.cumsum, (a, 0)),
    (torch.softmax, (a, 1)),
    (torch.log_softmax, (a, 0)),
    (torch.transpose, (a, 0, 1)),
    (torch.where, (a > 0, a, c)),
    (torch.gather, (a, 0, torch.randint(4, (2, 6)))),
    (F.layer_norm, (a, (6,), weight)),
    (F.embedding, (torch.randint(4, (8,)), a)),
    (F.linear, (a, torch.randn(8, 6))),
    (F.gelu, (a,)),
]
# every operator with every combination of shards and replicas of its arguments
sums = []
for function, arguments in calls:
    expected = function(*arguments)
    converter = DTensorConverter(mesh, arguments, {})
    for sharded, _ in converter:
        try:
            result = function(*sharded)
        except (NotImplementedError, RuntimeError) as error:  # there is no rule for these shards
            sums.append(float(len(type(error).__name__)))
            continue
        whole = result.full_tensor() if isinstance(result, DTensor) else result
        torch.testing.assert_close(whole, expected)
        sums.append(whole.double().sum().item())
dist.get_rank(), sums
