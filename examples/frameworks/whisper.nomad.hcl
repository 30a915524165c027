# Whisper turns speech into text, over the API of OpenAI. Written for speaches 0.8,
# ghcr.io/speaches-ai/speaches:latest-cuda.
#
#   curl http://<node>:8001/v1/audio/transcriptions -F file=@talk.wav -F model=Systran/faster-whisper-small
job "whisper" {
  group "whisper" {
    network {
      mode = "bridge"
      port "api" {
        static = 8001
        to     = 8000
      }
    }
    service {
      name     = "whisper"
      provider = "nomad"
      port     = "api"
    }
    ephemeral_disk {
      size   = 10000
      sticky = true
    }
    task "serve" {
      driver = "containerd"
      config {
        image = "ghcr.io/speaches-ai/speaches:latest-cuda"
      }
      env {
        HF_HUB_CACHE = "/alloc/data/huggingface"
      }
      resources {
        cpu    = 2000
        memory = 8192
        device "nvidia/slice" {
          count = 4
        }
      }
    }
  }
}
