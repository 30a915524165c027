# 8 GiB of one GPU. Nomad counts the slices, so the GPU's memory is never promised
# twice; compute comes in proportion, and all slices are of the same GPU.
job "slice" {
  group "serve" {
    task "serve" {
      driver = "containerd"

      config {
        image = "localhost/gpuprobe:1"
      }

      resources {
        cpu    = 100
        memory = 64

        device "nvidia/slice" {
          count = 8 # slices of 1 GiB
        }
      }
    }
  }
}
