app {
  url = "https://github.com/nomad-gpu/nomad-gpu"
}

pack {
  name        = "nomad_gpu"
  description = "The GPU placement service, its monitoring, and the configuration of clients with GPUs."
  version     = "0.1.0"
}
