# A whole GPU on a node that cuts its GPUs into slices: ask for all of them. The
# task then runs alone on the GPU, without MPS and without limits.
job "all-slices" {
  group "train" {
    task "train" {
      driver = "containerd"

      config {
        image = "localhost/gpuprobe:1"
      }

      resources {
        cpu    = 100
        memory = 64

        device "nvidia/slice" {
          count = 79 # what an 80 GB H100 has: nomad node status -verbose shows it

          constraint {
            attribute = "${device.attr.type}"
            value     = "H100"
          }
        }
      }
    }
  }
}
