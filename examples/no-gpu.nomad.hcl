# No device block, no GPU: whatever the image's NVIDIA_VISIBLE_DEVICES says.
job "no-gpu" {
  group "web" {
    task "web" {
      driver = "containerd"

      config {
        image = "localhost/gpuprobe:1"
      }

      resources {
        cpu    = 100
        memory = 64
      }
    }
  }
}
