// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/shoenig/test/must"

	"github.com/nomad-gpu/nomad-gpu/driver/config"
	"github.com/nomad-gpu/nomad-gpu/internal/taskconfig"
)

// The tests called TestRoblox_… are the behaviors that nomad-driver-containerd
// of Roblox shows end to end, each with a config block in that driver's words.

// oldConfig is a task's config block as a user of that driver wrote it.
func oldConfig(t *testing.T, hcl string) taskconfig.Config {
	t.Helper()
	var block taskconfig.Config
	parse(t, config.TaskSchema, `image = "`+testImage+`"`+"\n"+hcl, &block)
	return block
}

func TestRoblox_Redis(t *testing.T) {
	forEachContainerdAlone(t, func(t *testing.T, e *env) {
		// The image has no server; this one answers as simply.
		config := oldConfig(t, `
command      = "/local/listen"
args         = ["28379"]
hostname     = "foobar"
seccomp      = true
cwd          = "/tmp"
host_network = true`)
		cfg := e.task(config)
		e.bring(cfg, "listen")
		e.start(cfg)
		e.waitForLog(cfg, "listening")
		must.Eq(t, "hello from the task\n", greeting(t, net.JoinHostPort("127.0.0.1", "28379")))
		result, err := e.harness.ExecTask(cfg.ID, []string{"sh", "-c", "hostname; pwd"}, callTimeout)
		must.NoError(t, err)
		must.Eq(t, "foobar\n/tmp\n", string(result.Stdout))
		must.NoError(t, e.harness.StopTask(cfg.ID, 10*time.Second, ""))
		must.NoError(t, e.harness.DestroyTask(cfg.ID, true))
		must.Len(t, 0, e.containers())
	})
}

func TestRoblox_SignalHandler(t *testing.T) {
	withContainerd(t, func(t *testing.T, e *env) {
		config := oldConfig(t, `command = "sh"`)
		config.Args = []string{"-c", `trap 'echo hangup' HUP; trap 'echo interrupted; exit 0' INT; echo ready; while true; do sleep 0.05; done`}
		cfg := e.task(config)
		e.start(cfg)
		e.waitForLog(cfg, "ready")
		must.NoError(t, e.harness.SignalTask(cfg.ID, "SIGHUP"))
		e.waitForLog(cfg, "hangup")
		must.NoError(t, e.harness.StopTask(cfg.ID, 10*time.Second, "SIGINT"))
		must.Eq(t, 0, e.wait(cfg.ID).ExitCode)
		must.StrContains(t, e.logs(cfg, "stdout"), "interrupted")
	})
}

func TestRoblox_Capabilities(t *testing.T) {
	withContainerd(t, func(t *testing.T, e *env) {
		block := oldConfig(t, `
command  = "cat"
args     = ["/proc/self/status"]
cap_add  = ["CAP_SYS_ADMIN", "CAP_NET_RAW"]
cap_drop = ["CAP_CHOWN", "CAP_KILL"]`)
		wide := e.with(func(c *config.Config) { c.AllowCaps = []string{"all"} })
		out, _ := wide.run(block)
		// Nomad's thirteen, and bits 21 and 13 beside them, without 0 and 5.
		must.StrContains(t, out, "CapBnd:\t00000000a82425da")
	})
}

const privilegedConfig = `
command    = "cat"
args       = ["/proc/self/status"]
privileged = true`

func TestRoblox_Privileged(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, e *env) {
		allowed := e.with(func(c *config.Config) { c.AllowPrivileged = true })
		out, result := allowed.run(oldConfig(t, privilegedConfig))
		must.Eq(t, 0, result.ExitCode)
		must.StrContains(t, out, "Seccomp:\t0")
		must.StrContains(t, out, "NoNewPrivs:\t0")
	})
}

func TestRoblox_AllowPrivileged(t *testing.T) {
	withContainerd(t, func(t *testing.T, e *env) {
		_, _, err := e.harness.StartTask(e.quietTask(oldConfig(t, privilegedConfig)))
		must.ErrorContains(t, err, "has not set allow_privileged")
		must.Eq(t, nil, e.leftovers())
	})
}

func TestRoblox_VolumeMount(t *testing.T) {
	withContainerd(t, func(t *testing.T, e *env) {
		host := filepath.Join(e.dir, "s1")
		must.NoError(t, os.Mkdir(host, 0o755))
		must.NoError(t, os.WriteFile(filepath.Join(host, "hello.txt"), []byte("hello\n"), 0o644))
		config := oldConfig(t, `
command = "sh"
args    = ["-c", "cat /tmp/t1/hello.txt; touch /tmp/t1/x || echo read-only"]
mounts  = [
  { type = "bind", target = "/tmp/t1", source = "`+host+`", options = ["rbind", "ro"] },
]`)
		out, _ := e.run(config)
		must.Eq(t, "hello\nread-only\n", out)
	})
}

func TestRoblox_DNS(t *testing.T) {
	withContainerd(t, func(t *testing.T, e *env) {
		out, _ := e.run(oldConfig(t, `
command = "cat"
args    = ["/etc/resolv.conf"]`), func(cfg *drivers.TaskConfig) {
			cfg.DNS = &drivers.DNSConfig{Servers: []string{"127.0.0.1", "127.0.0.2"}, Searches: []string{"internal.corp"}, Options: []string{"ndots:2"}}
		})
		for _, line := range []string{"nameserver 127.0.0.1", "nameserver 127.0.0.2", "search internal.corp", "options ndots:2"} {
			must.SliceContains(t, lines(out), line)
		}
	})
}

func TestRoblox_ExtraHosts(t *testing.T) {
	withContainerd(t, func(t *testing.T, e *env) {
		out, _ := e.run(oldConfig(t, `
command     = "cat"
args        = ["/etc/hosts"]
extra_hosts = ["postgres:127.0.1.1", "redis:127.0.1.2"]`))
		must.StrContains(t, out, "127.0.1.1 postgres\n127.0.1.2 redis\n")
	})
}

func TestRoblox_Entrypoint(t *testing.T) {
	withContainerd(t, func(t *testing.T, e *env) {
		out, _ := e.run(oldConfig(t, `
entrypoint = ["echo"]
args       = ["container1", "container2"]`))
		must.Eq(t, "container1 container2\n", out)
	})
}

func TestRoblox_Auth(t *testing.T) {
	withContainerd(t, func(t *testing.T, e *env) {
		r := startRegistry(t, true, false)
		config := oldConfig(t, `
command = "echo"
args    = ["pulled"]
auth {
  username = "`+registryUser+`"
  password = "`+registryPassword+`"
}`)
		config.Image = r.push(t, "box:1")
		out, _ := e.run(config)
		must.Eq(t, "pulled\n", out)
	})
}

// Nomad renders templates into the task's directory; the container sees them.
func TestRoblox_Template(t *testing.T) {
	withContainerd(t, func(t *testing.T, e *env) {
		cfg := e.task(oldConfig(t, `
command = "sh"
args    = ["-c", "cat /local/nomad.env /secrets/password; echo $RENDERED"]`), func(cfg *drivers.TaskConfig) {
			cfg.Env["RENDERED"] = "from a template's env"
		})
		must.NoError(t, os.WriteFile(filepath.Join(cfg.TaskDir().LocalDir, "nomad.env"), []byte("bind=127.0.0.1\n"), 0o644))
		must.NoError(t, os.WriteFile(filepath.Join(cfg.TaskDir().SecretsDir, "password"), []byte("secret\n"), 0o600))
		e.start(cfg)
		must.Eq(t, 0, e.wait(cfg.ID).ExitCode)
		must.Eq(t, "bind=127.0.0.1\nsecret\nfrom a template's env\n", e.logs(cfg, "stdout"))
	})
}
