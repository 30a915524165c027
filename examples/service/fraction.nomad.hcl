# 8 GiB of one GPU and half of its compute. The placement service makes the device
# block of it, and chooses the node and the GPU:
#
#   NOMAD_ADDR=http://gpu.example:4656 nomad job run fraction.nomad.hcl
job "fraction" {
  group "serve" {
    task "serve" {
      driver = "containerd"

      meta {
        gpu = "8G,0.5"
      }

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
