# One whole GPU of NVIDIA's, on a node that has others' too.
job "nvidia" {
  group "train" {
    task "train" {
      driver = "containerd"

      config {
        image = "localhost/gpuprobe:1" # your image: "pytorch/pytorch:latest"
      }

      resources {
        cpu    = 100
        memory = 64

        # Any model; "nvidia/gpu/NVIDIA H100 80GB HBM3" takes one model only.
        device "nvidia/gpu" {}
      }
    }
  }
}
