# A share that differs from what the slices give: less memory, a guarantee of half
# the GPU's compute, and up to four fifths of it while the others leave it idle.
job "burst" {
  group "serve" {
    task "serve" {
      driver = "containerd"

      config {
        image = "localhost/gpuprobe:1"

        gpu {
          memory        = "7GiB" # at most what the slices give
          compute       = 0.5    # kept free for this task
          compute_limit = 0.8    # at least the guarantee
        }
      }

      resources {
        cpu    = 100
        memory = 64

        device "nvidia/slice" {
          count = 8
        }
      }
    }
  }
}
