job "nomad-gpu-scheduler" {
  namespace   = [[ var "namespace" . | quote ]]
  datacenters = [[ var "datacenters" . | toJson ]]
  type        = "service"
  priority    = 90

  group "replica" {
    count = [[ var "replicas" . ]]

    constraint {
      operator = "distinct_hosts"
      value    = "true"
    }

    update {
      max_parallel     = 1
      min_healthy_time = "10s"
    }

    ephemeral_disk {
      sticky  = true
      migrate = true
      size    = 500
    }

    network {
      mode = "host"
      port "http" {
        static = 4656
      }
    }

    service {
      name     = "nomad-gpu-scheduler"
      provider = "nomad"
      port     = "http"
      check {
        type     = "http"
        path     = "/readyz"
        interval = "10s"
        timeout  = "3s"
      }
    }

    task "serve" {
[[- if var "image" . ]]
      driver = "containerd"
      config {
        image        = [[ var "image" . | quote ]]
        network_mode = "host"
        args         = ["serve", "-config", "${NOMAD_TASK_DIR}/scheduler.hcl"]
      }
[[- else ]]
      driver = "exec"
      config {
        command = "nomad-gpu-scheduler"
        args    = ["serve", "-config", "${NOMAD_TASK_DIR}/scheduler.hcl"]
      }
[[- end ]]
      identity {
        file = true
      }
      template {
        destination   = "local/scheduler.hcl"
        change_mode   = "signal"
        change_signal = "SIGHUP"
        data          = <<-EOT
          ledger {
            path        = "{{ env "NOMAD_ALLOC_DIR" }}/data/ledger"
            max_size_mb = 400
          }
          nomad {
            address    = "http://{{ env "attr.unique.network.ip-address" }}:4646"
            token_file = "{{ env "NOMAD_SECRETS_DIR" }}/nomad_token"
          }
          listen {
            address   = "{{ env "NOMAD_ADDR_http" }}"
            advertise = "http://{{ env "NOMAD_ADDR_http" }}"
          }
        EOT
      }
      kill_timeout = "20s"
      resources {
        cpu    = 500
        memory = 256
      }
    }
  }
}
