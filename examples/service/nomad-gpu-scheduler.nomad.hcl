# The placement service as a Nomad job: two replicas, of which one leads.
#
# It needs the policy in policy.hcl as a token in the Nomad Variable
# nomad/jobs/nomad-gpu-scheduler:
#
#   nomad var put nomad/jobs/nomad-gpu-scheduler token=<secret ID>
#
# People then use it in place of Nomad's own address:
#
#   export NOMAD_ADDR=http://<node>:4656
job "nomad-gpu-scheduler" {
  type     = "service"
  priority = 90 # it must not wait for what it places

  group "replica" {
    count = 2
    constraint {
      operator = "distinct_hosts"
      value    = "true"
    }
    update {
      max_parallel     = 1
      min_healthy_time = "10s"
    }
    network {
      mode = "host"
      port "http" { static = 4656 }
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
      driver = "exec"
      config {
        command = "/usr/local/bin/nomad-gpu-scheduler"
        args    = ["serve", "-config", "${NOMAD_TASK_DIR}/scheduler.hcl"]
      }
      template {
        destination   = "local/scheduler.hcl"
        change_mode   = "signal"
        change_signal = "SIGHUP"
        data          = <<-EOT
          nomad {
            address    = "http://{{ env "attr.unique.network.ip-address" }}:4646"
            token_file = "{{ env "NOMAD_SECRETS_DIR" }}/token"
          }
          listen {
            address   = "0.0.0.0:4656"
            advertise = "http://{{ env "NOMAD_ADDR_http" }}"
          }
          queue "default" {
            namespaces = ["default"]
          }
        EOT
      }
      template {
        destination = "secrets/token"
        perms       = "600"
        change_mode = "restart"
        data        = "{{ with nomadVar \"nomad/jobs/nomad-gpu-scheduler\" }}{{ .token }}{{ end }}"
      }
      kill_timeout = "20s" # time to give the leader lock back
      resources {
        cpu    = 500
        memory = 256
      }
    }
  }
}
