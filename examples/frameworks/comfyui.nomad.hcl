# ComfyUI, in a browser at http://<node>:8188. Written for
# docker.io/yanwk/comfyui-boot:cu130-slim-v2.
#
# The group's disk keeps models, custom nodes and pictures. ComfyUI asks for no password:
# let only those reach the port that may use it.
job "comfyui" {
  group "comfyui" {
    network {
      mode = "bridge"
      port "web" {
        static = 8188
        to     = 8188
      }
    }
    service {
      name     = "comfyui"
      provider = "nomad"
      port     = "web"
    }
    ephemeral_disk {
      size    = 40000
      sticky  = true
      migrate = true
    }
    task "serve" {
      driver = "containerd"
      config {
        image = "docker.io/yanwk/comfyui-boot:cu130-slim-v2"
      }
      env {
        CLI_ARGS = "--base-directory /alloc/data"
      }
      resources {
        cpu    = 4000
        memory = 16384
        device "nvidia/slice" {
          count = 12
        }
      }
    }
  }
}
