# PyTorch's DistributedDataParallel over the GPUs of one node. Written for
# docker.io/pytorch/pytorch:2.8.0-cuda12.8-cudnn9-runtime. Over several nodes:
# examples/service/distributed.nomad.hcl.
job "ddp" {
  type = "batch"
  group "train" {
    reschedule {
      attempts  = 3
      interval  = "24h"
      unlimited = false
    }
    task "train" {
      driver = "containerd"
      config {
        image    = "docker.io/pytorch/pytorch:2.8.0-cuda12.8-cudnn9-runtime"
        command  = "torchrun"
        args     = ["--standalone", "--nproc-per-node=gpu", "/local/train.py"]
        shm_size = "8GiB" # for NCCL and for the workers of data loaders
      }
      template {
        destination = "local/train.py"
        data        = <<-EOT
          import os
          import torch
          import torch.distributed as dist
          from torch.nn.parallel import DistributedDataParallel

          dist.init_process_group("nccl")
          gpu = int(os.environ["LOCAL_RANK"])
          torch.cuda.set_device(gpu)
          model = DistributedDataParallel(torch.nn.Linear(1024, 1024).cuda(), device_ids=[gpu])
          optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
          for step in range(1000):
              optimizer.zero_grad()
              loss = model(torch.randn(256, 1024, device="cuda")).square().mean()
              loss.backward()
              optimizer.step()
              if step % 100 == 0 and dist.get_rank() == 0:
                  print(step, loss.item(), flush=True)
          dist.destroy_process_group()
        EOT
      }
      resources {
        cpu    = 8000
        memory = 32768
        device "nvidia/gpu" {
          count = 2
        }
      }
    }
  }
}
