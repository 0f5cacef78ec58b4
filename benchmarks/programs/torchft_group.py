import torch
import torch.distributed as dist
from torchft.process_group import ProcessGroupGloo

dist.init_process_group("gloo")
address = [None]
if dist.get_rank() == 0:
    store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    address = [f"localhost:{store.port}/group"]
dist.broadcast_object_list(address)
group = ProcessGroupGloo()
group.configure(address[0], f"replica {dist.get_rank()}", dist.get_rank(), dist.get_world_size())
total = torch.ones(1) * dist.get_rank()
group.allreduce([total], dist.ReduceOp.SUM).wait()
dist.get_rank(), total.tolist()
