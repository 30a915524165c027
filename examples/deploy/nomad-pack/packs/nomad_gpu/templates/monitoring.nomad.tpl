[[- if var "monitoring" . ]]
job "nomad-gpu-monitoring" {
  namespace   = [[ var "namespace" . | quote ]]
  datacenters = [[ var "datacenters" . | toJson ]]
  type        = "service"

  group "prometheus" {
    network {
      mode = "bridge"
      port "http" {
        static = 9090
        to     = 9090
      }
    }

    service {
      name     = "nomad-gpu-prometheus"
      provider = "nomad"
      port     = "http"
    }

    ephemeral_disk {
      sticky  = true
      migrate = true
      size    = 2000
    }

    task "prometheus" {
      driver = "containerd"
      config {
        image = "docker.io/prom/prometheus:v3.5.0"
        args  = ["--config.file=/local/prometheus.yml", "--storage.tsdb.path=/alloc/data"]
      }
[[- range list "nodes" "service" ]]
      artifact {
        source      = "https://raw.githubusercontent.com/nomad-gpu/nomad-gpu/[[ var "release" $ ]]/docs/alerts/[[ . ]].rules.yml"
        destination = "local/alerts/[[ . ]].rules.yml"
        mode        = "file"
      }
[[- end ]]
      template {
        destination   = "local/prometheus.yml"
        change_mode   = "signal"
        change_signal = "SIGHUP"
        data          = <<-EOT
          rule_files: ["/local/alerts/*.yml"]
          scrape_configs:
            - job_name: nomad-gpu-scheduler
              static_configs:
                - targets: [{{ range nomadService "nomad-gpu-scheduler" }}"{{ .Address }}:{{ .Port }}",{{ end }}]
            - job_name: nomad-device-gpu
              static_configs:
                - targets: [[ "[" ]][[ range var "clients" . ]]"[[ . ]]:[[ var "metrics_port" $ ]]",[[ end ]][[ "]" ]]
        EOT
      }
      user = "root"
      resources {
        cpu    = 500
        memory = 1024
      }
    }
  }
}
[[- end ]]
