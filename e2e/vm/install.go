// SPDX-License-Identifier: MPL-2.0

package vm

import (
	"fmt"
)

// topology is a machine with just the GPUs that the examples need beside each other:
// every one more is work for a processor that may be emulated.
const topology = `machine "vm" {}

gpu {
  model = "H100"
  count = 2
}

gpu {
  model = "H100"
  mig   = ["1g.10gb", "1g.10gb"]
}

gpu {
  model = "H100"
  count = 2
}
`

// daemons is how many MPS daemons that makes.
const daemons = 2

// gpuRules says what the machine's GPUs are.
const gpuRules = `
    gpu {
      index   = 0
      mode    = "slice"
      sharing = "mps"
    }
    gpu {
      index   = 1
      mode    = "slice"
      sharing = "mps"
    }
    gpu {
      index = 2
      mode  = "mig"
    }
`

// nomadUnit is the unit of docs/install.md, with the paths of the payload.
const nomadUnit = `[Unit]
Description=Nomad
Wants=network-online.target containerd.service
After=network-online.target containerd.service

[Service]
ExecStartPre=/usr/bin/mountpoint -q /opt/gpu
ExecStart=/opt/gpu/bin/nomad agent -config /etc/nomad.d
ExecReload=/bin/kill -HUP $MAINPID
KillMode=process
KillSignal=SIGINT
Restart=on-failure
RestartSec=2
LimitNOFILE=65536
LimitNPROC=infinity
TasksMax=infinity
OOMScoreAdjust=-1000

[Install]
WantedBy=multi-user.target
`

// nomadConfig makes a server and a client of one agent. It takes the port of the host that leads
// to it, where Nomad's API looks for the client: at 4646 another agent may answer there. And it
// takes the GPUs' rules.
const nomadConfig = `
data_dir   = "/var/lib/nomad"
plugin_dir = "/opt/gpu/bin"
bind_addr  = "0.0.0.0"
log_level  = "INFO"
disable_update_check = true
advertise {
  http = "127.0.0.1:%d"
  rpc  = "127.0.0.1"
  serf = "127.0.0.1"
}
server {
  enabled          = true
  bootstrap_expect = 1
  # A client that is slow on a busy machine has not lost its tasks.
  heartbeat_grace = "2m"
}
telemetry {
  publish_allocation_metrics = true
  # Every second, the default, is much for a processor that may be emulated.
  collection_interval = "10s"
}
client {
  enabled           = true
  network_interface = "lo"
  cni_path          = "/usr/lib/cni"
  cpu_total_compute = 20000
  memory_total_mb   = 65536
  options = {
    "fingerprint.denylist" = "env_aws,env_gce,env_azure,env_digitalocean"
  }
}
plugin "nomad-device-gpu" {
  config {
    data_dir = "/var/lib/nomad-gpu"
    simulation {
      topology = "/opt/gpu/topology.hcl"
      dir      = "/var/lib/nomad-gpu-simulation"
    }
    mps {
      control = "/opt/gpu/bin/nvidia-cuda-mps-control"
    }
    %s
  }
}
plugin "nomad-driver-containerd" {
  config {
    gc { period = "30s" }
    # For the one task that tries it.
    allow_privileged = true
    max_swap         = "64M"
  }
}
`

// install is a script that makes a fresh machine a node.
func (m *Machine) install() string {
	return fmt.Sprintf(`
mkdir -p /etc/nomad.d /var/lib/nomad-gpu-simulation
grep -q /opt/gpu /etc/fstab || echo '/dev/vdb /opt/gpu ext4 ro 0 0' >>/etc/fstab
ln -sf /opt/gpu/bin/nomad /usr/local/bin/nomad
cat >/etc/nomad.d/nomad.hcl <<'EOF'
%s
EOF
cat >/etc/systemd/system/nomad.service <<'EOF'
%s
EOF
for image in /opt/gpu/images/*.tar; do ctr -n nomad-gpu images import "$image"; done
systemctl daemon-reload
systemctl enable --now nomad
`, fmt.Sprintf(nomadConfig, m.NomadPort, gpuRules), nomadUnit)
}
