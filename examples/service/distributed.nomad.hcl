# Two ranks of one distributed training, submitted through the placement service.
# They find each other by Nomad's own service discovery; the program gets what
# torch.distributed and torchrun read: MASTER_ADDR, MASTER_PORT, WORLD_SIZE, RANK.
# It adds numbers over plain sockets here, where a real one calls NCCL.
job "distributed" {
  type = "batch"

  group "ranks" {
    count = 2

    network {
      mode = "host" # the ranks open ports of their own, which a bridge does not forward
    }

    task "rank" {
      driver = "containerd"

      meta {
        gpu                 = "1"
        gpu_framework       = "pytorch"
        gpu_memory_mode     = "aggressive"
        gpu_mixed_precision = "true"
        gpu_distributed     = "true"
      }

      config {
        image   = "docker.io/library/python:3.12-slim"
        command = "python3"
        args    = ["${NOMAD_TASK_DIR}/allreduce.py"]
      }

      template {
        destination = "local/allreduce.py"
        data        = <<-PYTHON
          import json, os, socket, time

          def line(connection):
              return json.loads(connection.makefile().readline())

          def send(connection, value):
              connection.sendall((json.dumps(value) + "\n").encode())

          def ranks():
              """Rank, world size and master, as either framework is told."""
              if "TF_CONFIG" in os.environ:
                  config = json.loads(os.environ["TF_CONFIG"])
                  workers = config["cluster"]["worker"]
                  host, port = workers[0].rsplit(":", 1)
                  return config["task"]["index"], len(workers), host, int(port)
              env = os.environ
              return int(env["RANK"]), int(env["WORLD_SIZE"]), env["MASTER_ADDR"], int(env["MASTER_PORT"])

          def allreduce(value):
              rank, world, host, port = ranks()
              if rank == 0:
                  server = socket.create_server(("", port))
                  others = [server.accept()[0] for _ in range(world - 1)]
                  total = value + sum(line(other) for other in others)
                  for other in others:
                      send(other, total)
                  return total
              while True:
                  try:
                      master = socket.create_connection((host, port), timeout=60)
                      break
                  except ConnectionRefusedError:
                      time.sleep(0.1)
              send(master, value)
              return line(master)

          rank, world, _, _ = ranks()
          print(f"rank {rank} of {world}: sum {allreduce(rank + 1)}", flush=True)
        PYTHON
      }

      resources {
        cpu    = 200
        memory = 128
      }
    }
  }
}
