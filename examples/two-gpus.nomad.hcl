# Two whole GPUs in one task. Both are of the same model: Nomad serves one device
# block from one group of equal devices.
job "two-gpus" {
  group "train" {
    task "train" {
      driver = "containerd"

      config {
        image = "localhost/gpuprobe:1"
      }

      resources {
        cpu    = 100
        memory = 64

        device "nvidia/gpu" {
          count = 2
        }
      }
    }
  }
}
