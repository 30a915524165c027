# vLLM serves a model over the API of OpenAI. Written for docker.io/vllm/vllm-openai:v0.11.0.
#
#   curl http://<node>:8000/v1/models
#
# The group's disk keeps the model between restarts. vLLM takes a part of the memory that
# it sees, which with MPS is the part of the slices.
job "vllm" {
  group "vllm" {
    network {
      mode = "bridge"
      port "api" {
        static = 8000
        to     = 8000
      }
    }
    service {
      name     = "vllm"
      provider = "nomad"
      port     = "api"
    }
    ephemeral_disk {
      size   = 40000
      sticky = true
    }
    task "serve" {
      driver = "containerd"
      config {
        image = "docker.io/vllm/vllm-openai:v0.11.0"
        args  = ["--model", "Qwen/Qwen2.5-7B-Instruct", "--max-model-len", "8192", "--gpu-memory-utilization", "0.9", "--port", "8000"]
      }
      env {
        HF_HOME = "/alloc/data/huggingface"
      }
      resources {
        cpu    = 4000
        memory = 16384
        device "nvidia/slice" {
          count = 24
        }
      }
    }
  }
}
