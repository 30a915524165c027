# One MIG instance: a part of a GPU that the hardware itself keeps apart.
job "mig" {
  group "serve" {
    task "serve" {
      driver = "containerd"

      config {
        image = "localhost/gpuprobe:1"
      }

      resources {
        cpu    = 100
        memory = 64

        device "nvidia/mig/1g.10gb" {}
      }
    }
  }
}
