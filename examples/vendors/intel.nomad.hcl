# One of Intel's cards: its card and render node.
job "intel" {
  group "train" {
    task "train" {
      driver = "containerd"

      config {
        image = "localhost/gpuprobe:1" # your image: "intel/intel-extension-for-pytorch:latest"
      }

      resources {
        cpu    = 100
        memory = 64

        # A virtual function of a card is "intel/vf".
        device "intel/gpu" {}
      }
    }
  }
}
