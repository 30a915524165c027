# For Nomad's clients: copy this to /etc/nomad.d/nomad-gpu.hcl, take out what does
# not fit, check it and restart Nomad.
#
#   nomad-device-gpu validate /etc/nomad.d
#   nomad-driver-containerd validate /etc/nomad.d
#   systemctl restart nomad
#
# All keys: docs/device.md and docs/driver.md of
# https://github.com/nomad-gpu/nomad-gpu

plugin_dir = "/opt/nomad/plugins" # where the package puts the plugins

plugin "nomad-device-gpu" {
  config {
    # How GPUs are offered: "whole" (the default), "slice", "shared" or "mig".
    # mode = "slice"

    # Or by model, index, UUID or PCI address; the first rule that fits holds.
    # gpu {
    #   model = "H100"
    #   mode  = "slice"
    # }

    # Metrics for Prometheus.
    # metrics {
    #   address = "127.0.0.1:9836"
    # }
  }
}

plugin "nomad-driver-containerd" {
  config {
    # Host paths that jobs may mount.
    # volumes {
    #   enabled     = true
    #   allow_paths = ["/srv"]
    # }
  }
}

telemetry {
  publish_allocation_metrics = true # without it Nomad shows no statistics of tasks
}
