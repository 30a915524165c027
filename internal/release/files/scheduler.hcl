# The placement service: /usr/bin/nomad-gpu-scheduler. All keys: docs/service.md of
# https://github.com/nomad-gpu/nomad-gpu
#
#   nomad-gpu-scheduler validate /etc/nomad-gpu/scheduler.hcl
#   systemctl reload nomad-gpu-scheduler

# listen {
#   address   = "0.0.0.0:4656"
#   advertise = "http://gpu.example:4656"
# }

# placement {
#   policy = "BALANCED"
# }

# queue "research" {
#   gpus       = 8
#   namespaces = ["research"]
# }
