# The placement service as a Nomad job: two replicas, of which one leads.
#
# With ACLs on, its identity as a Nomad job is its token. This says what it may do:
#
#   nomad acl policy apply -namespace default -job nomad-gpu-scheduler nomad-gpu-scheduler policy.hcl
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
    ephemeral_disk { # the ledger stays on its node, or moves with the replica
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
      driver = "exec" # or raw_exec: it needs nothing of its node
      config {
        command = "nomad-gpu-scheduler" # of the package, or of "make install"
        args    = ["serve", "-config", "${NOMAD_TASK_DIR}/scheduler.hcl"]
      }
      identity {
        file = true # secrets/nomad_token, which Nomad renews
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
            # The agent of the node: it finds the servers' leader. With TLS:
            # https, ca_file, cert_file, key_file and tls_server_name.
            address    = "http://{{ env "attr.unique.network.ip-address" }}:4646"
            token_file = "{{ env "NOMAD_SECRETS_DIR" }}/nomad_token"
          }
          listen {
            address   = "{{ env "NOMAD_ADDR_http" }}"
            advertise = "http://{{ env "NOMAD_ADDR_http" }}"
          }
          queue "default" {
            namespaces = ["default"]
          }
        EOT
      }
      kill_timeout = "20s" # time to give the leader lock back
      resources {
        cpu    = 500
        memory = 256
      }
    }
  }
}
