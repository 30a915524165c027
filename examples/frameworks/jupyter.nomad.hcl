# A notebook. Written for quay.io/jupyter/pytorch-notebook:cuda12-python-3.12.
#
# "nomad alloc logs -stderr ALLOC" prints the address with its token; open it with the
# node's name and the port that "nomad alloc status ALLOC" shows.
#
# Files below /alloc/data/work stay when the task restarts, and move with the job to another
# node; other files of the container do not.
job "jupyter" {
  group "jupyter" {
    network {
      mode = "bridge"
      port "web" {
        to = 8888
      }
    }
    service {
      name     = "jupyter"
      provider = "nomad"
      port     = "web"
    }
    ephemeral_disk {
      size    = 2000
      sticky  = true
      migrate = true
    }
    task "notebook" {
      driver = "containerd"
      user   = "1000"
      config {
        image   = "quay.io/jupyter/pytorch-notebook:cuda12-python-3.12"
        command = "sh"
        args    = ["-c", "mkdir -p /alloc/data/work && exec start-notebook.py --ServerApp.root_dir=/alloc/data/work"]
        gpu {
          compute       = 100  # a tenth of the GPU, kept free for this notebook
          compute_limit = 1000 # all of it while the others are idle
        }
      }
      env {
        HOME = "/local"
      }
      resources {
        cpu    = 2000
        memory = 8192
        device "nvidia/slice" {
          count = 8
        }
      }
    }
  }
}
