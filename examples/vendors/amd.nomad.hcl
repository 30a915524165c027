# One partition of an AMD GPU: /dev/kfd, and the render node of that partition.
job "amd" {
  group "train" {
    task "train" {
      driver = "containerd"

      config {
        image = "localhost/gpuprobe:1" # your image: "rocm/pytorch:latest"
      }

      resources {
        cpu    = 100
        memory = 64

        # In any mode; "amd/partition/cpx-nps4" takes one mode only, "amd/gpu" whole GPUs.
        device "amd/partition" {}
      }
    }
  }
}
