// SPDX-License-Identifier: MPL-2.0

package cluster

// serverConfig takes the name, the data folder, the HTTP, RPC and serf ports,
// how many servers there are, where the others are reached, and what else is set.
const serverConfig = `
name      = %q
data_dir  = %q
bind_addr = "127.0.0.1"
advertise {
  http = "127.0.0.1"
  rpc  = "127.0.0.1"
  serf = "127.0.0.1"
}
ports {
  http = %d
  rpc  = %d
  serf = %d
}
disable_update_check = true
telemetry {
  prometheus_metrics = true
}
server {
  enabled          = true
  bootstrap_expect = %d
  raft_multiplier  = 1
  server_join {
    retry_join     = %s
    retry_interval = "1s"
  }
  # A client that is slow to come back on a busy machine has not lost its tasks.
  heartbeat_grace = "40s"
  %s
}
`

// clientConfig takes the name, the data and the plugin folder, the HTTP and RPC
// ports, the servers' RPC addresses, the control group, the folder of CNI networks, the program of exec tasks, the folder
// with such programs, and the plugins' settings.
const clientConfig = `
name       = %q
data_dir   = %q
plugin_dir = %q
bind_addr  = "127.0.0.1"
log_level  = "DEBUG"
advertise {
  http = "127.0.0.1"
  rpc  = "127.0.0.1"
}
ports {
  http = %d
  rpc  = %d
}
disable_update_check = true
# Without it Nomad has no statistics of tasks.
telemetry {
  publish_allocation_metrics = true
}
client {
  enabled           = true
  servers           = %s
  cgroup_parent     = %q
  network_interface = "lo"
  cni_path          = "/usr/lib/cni:/opt/cni/bin"
  cni_config_dir    = %q
  # The machine is as large as a GPU server, whatever it runs on.
  cpu_total_compute       = 100000
  memory_total_mb         = 262144
  gc_disk_usage_threshold = 99
  # Tasks of the exec driver see no more of the machine than this.
  chroot_env {
    %q = "/bin/gpuprobe"
  }
  # For exec tasks that speak to the gates of MPS.
  host_volume "nomad-gpu-mps" {
    path = "/run/nomad-gpu/mps"
  }
  host_volume "programs" {
    path      = %q
    read_only = true
  }
  options = {
    "fingerprint.denylist" = "env_aws,env_gce,env_azure,env_digitalocean"
  }
}
plugin "nomad-device-gpu" {
  config {
    %s
  }
}
plugin "nomad-driver-containerd" {
  config {
    %s
  }
}
plugin "raw_exec" {
  config {
    enabled = true
  }
}
`

// simulationConfig takes the topology file, the simulator's folder, the
// machine's name, what else is in the block, the stand-in for NVIDIA's MPS control
// program, and what else is in the mps block.
const simulationConfig = `
    simulation {
      topology = %q
      dir      = %q
      machine  = %q
      %s
    }
    mps {
      control = %q
      %s
    }
`

// containerdConfigs holds, by version of the file, a configuration that takes the
// root folder.
var containerdConfigs = map[int]string{
	2: `
version = 2
root    = %q
state   = "/run/containerd"
disabled_plugins = ["io.containerd.grpc.v1.cri", "io.containerd.internal.v1.opt"]
[grpc]
  address = "/run/containerd/containerd.sock"
[ttrpc]
  address = "/run/containerd/containerd.sock.ttrpc"
`,
	3: `
version = 3
root    = %q
state   = "/run/containerd"
disabled_plugins = ["io.containerd.cri.v1.runtime", "io.containerd.cri.v1.images", "io.containerd.grpc.v1.cri", "io.containerd.nri.v1.nri", "io.containerd.internal.v1.opt"]
[grpc]
  address = "/run/containerd/containerd.sock"
[ttrpc]
  address = "/run/containerd/containerd.sock.ttrpc"
`,
}

const aclConfig = `
acl {
  enabled = true
}
`

// tlsConfig takes the authority's certificate, and the agent's with its key.
const tlsConfig = `
tls {
  http                = true
  verify_https_client = true
  ca_file             = %q
  cert_file           = %q
  key_file            = %q
}
`
