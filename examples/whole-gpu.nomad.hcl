# One whole GPU, for this task alone.
job "whole-gpu" {
  group "train" {
    task "train" {
      driver = "containerd"

      config {
        image = "localhost/gpuprobe:1" # your image: "pytorch/pytorch:latest"
      }

      resources {
        cpu    = 100
        memory = 64

        # Any model. To take one model only, name it as the node does, for example
        # device "nvidia/gpu/NVIDIA H100 80GB HBM3" {}
        device "nvidia/gpu" {}
      }
    }
  }
}
