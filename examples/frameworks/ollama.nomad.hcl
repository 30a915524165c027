# Ollama loads models when they are asked for. Written for docker.io/ollama/ollama:0.12.6.
#
#   curl http://<node>:11434/api/generate -d '{"model": "llama3.2", "prompt": "Why?"}'
#
# The group's disk keeps the models: after the start, "nomad alloc exec ALLOC ollama pull llama3.2".
job "ollama" {
  group "ollama" {
    network {
      mode = "bridge"
      port "api" {
        static = 11434
        to     = 11434
      }
    }
    service {
      name     = "ollama"
      provider = "nomad"
      port     = "api"
    }
    ephemeral_disk {
      size   = 20000
      sticky = true
    }
    task "serve" {
      driver = "containerd"
      config {
        image = "docker.io/ollama/ollama:0.12.6"
      }
      env {
        OLLAMA_HOST   = "0.0.0.0:11434"
        OLLAMA_MODELS = "/alloc/data/models"
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
