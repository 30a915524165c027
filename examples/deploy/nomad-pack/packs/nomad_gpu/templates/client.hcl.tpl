# For Nomad's clients with GPUs: /etc/nomad.d/nomad-gpu.hcl
plugin_dir = "/opt/nomad/plugins"

plugin "nomad-device-gpu" {
  config {
    mode = [[ var "gpu_mode" . | quote ]]

    metrics {
      address = "0.0.0.0:[[ var "metrics_port" . ]]"
    }
  }
}

plugin "nomad-driver-containerd" {
  config {}
}

telemetry {
  publish_allocation_metrics = true
}
