# A MIG instance with at least 16 GiB and a fifth of a GPU's compute, whatever its profile. Where
# none is free, a GPU with `layout = "demand"` is cut again for it:
#
#   NOMAD_ADDR=http://gpu.example:4656 nomad job run instance.nomad.hcl
job "instance" {
  group "serve" {
    task "serve" {
      driver = "containerd"

      meta {
        gpu         = "16G,0.2"
        gpu_sharing = "mig"
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
