# User data for machines with GPUs that join a Nomad cluster, for example
# aws_launch_template's user_data = base64encode(local.nomad_gpu_client). The image has
# NVIDIA's driver, Nomad and its configuration of servers.
variable "nomad_gpu_url" {
  description = "Where the repositories of a release are served."
  type        = string
  default     = "https://packages.nomad-gpu.invalid"
}

variable "nomad_gpu_mode" {
  description = "How GPUs are offered: whole, slice, shared or mig."
  type        = string
  default     = "slice"
}

locals {
  nomad_gpu_client = <<-EOT
    #!/bin/sh
    set -eu
    curl -fsSL -o /etc/apt/keyrings/nomad-gpu.asc ${var.nomad_gpu_url}/nomad-gpu.asc
    curl -fsSL -o /etc/apt/sources.list.d/nomad-gpu.sources ${var.nomad_gpu_url}/apt/nomad-gpu.sources
    apt-get update
    DEBIAN_FRONTEND=noninteractive apt-get install -y nomad-gpu-plugins
    cat >/etc/nomad.d/nomad-gpu.hcl <<'EOF'
    plugin_dir = "/opt/nomad/plugins"
    plugin "nomad-device-gpu" {
      config {
        mode = "${var.nomad_gpu_mode}"
      }
    }
    plugin "nomad-driver-containerd" {
      config {}
    }
    telemetry {
      publish_allocation_metrics = true
    }
    EOF
    systemctl restart nomad
  EOT
}

output "nomad_gpu_client" {
  value = local.nomad_gpu_client
}
