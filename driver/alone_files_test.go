// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"testing"

	"github.com/containerd/containerd/v2/pkg/oci"
	"github.com/hashicorp/nomad/plugins/drivers"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/nomad-gpu/nomad-gpu/driver/cgroups/cgroupstest"
	"github.com/nomad-gpu/nomad-gpu/driver/config"
	"github.com/nomad-gpu/nomad-gpu/driver/rooted"
	"github.com/nomad-gpu/nomad-gpu/driver/runtime"
	"github.com/nomad-gpu/nomad-gpu/internal/taskconfig"
)

// allocated is a task with the directories that Nomad makes for it.
func allocated(t *testing.T) *drivers.TaskConfig {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("device nodes and mounts need root")
	}
	cfg := &drivers.TaskConfig{ID: "task", Name: "web", AllocDir: t.TempDir()}
	for _, dir := range []string{"alloc/logs", "alloc/data", "alloc/tmp", "web/local", "web/secrets", "web/private"} {
		must.NoError(t, os.MkdirAll(filepath.Join(cfg.AllocDir, dir), 0o755))
	}
	secrets := filepath.Join(cfg.AllocDir, "web/secrets")
	must.NoError(t, unix.Mount("tmpfs", secrets, "tmpfs", 0, "size=1m"))
	t.Cleanup(func() { must.NoError(t, unix.Unmount(secrets, unix.MNT_DETACH)) })
	return cfg
}

// What a task is to see is opened before its start, or the start says what could not be.
func TestFilesOfATask(t *testing.T) {
	everything := taskconfig.Policy{VolumesEnabled: true}
	good := allocated(t)
	local := filepath.Join(good.AllocDir, "web", "local")
	must.NoError(t, os.WriteFile(filepath.Join(local, "file"), nil, 0o600))
	must.NoError(t, os.Symlink("/etc/passwd", filepath.Join(local, "link")))
	must.NoError(t, os.Symlink("/nowhere", filepath.Join(local, "nowhere")))
	must.NoError(t, unix.Mknod(filepath.Join(local, "device"), unix.S_IFCHR|0o600, int(unix.Mkdev(1, 5))))
	mount := func(source string) taskconfig.Config {
		return taskconfig.Config{Mounts: []taskconfig.MountConfig{{Type: "tmpfs", Target: "/tmp"}, {Type: "bind", Source: source, Target: "/data"}}}
	}
	propagated := mount("local/file")
	propagated.Mounts[1].Propagation = "up"
	unshared := mount(filepath.Join(good.AllocDir, "alone"))
	unshared.Mounts[1].Propagation = "rshared"
	must.NoError(t, os.Mkdir(unshared.Mounts[1].Source, 0o755))
	must.NoError(t, unix.Mount("t", unshared.Mounts[1].Source, "tmpfs", 0, ""))
	t.Cleanup(func() { must.NoError(t, unix.Unmount(unshared.Mounts[1].Source, unix.MNT_DETACH)) })
	must.NoError(t, unix.Mount("", unshared.Mounts[1].Source, "", unix.MS_PRIVATE, ""))
	volume := func(path, propagation string) func(*drivers.TaskConfig) {
		return func(cfg *drivers.TaskConfig) {
			cfg.Mounts = []*drivers.MountConfig{{TaskPath: "/vol", HostPath: path, PropagationMode: propagation}}
		}
	}
	for name, row := range map[string]struct {
		config taskconfig.Config
		change func(*drivers.TaskConfig)
		policy taskconfig.Policy
		says   string
		shown  int
	}{
		"nothing of its own":        {shown: 6},
		"a file":                    {config: mount("local/file"), shown: 7},
		"a volume":                  {change: volume(local, "private"), shown: 7},
		"no directory at all":       {change: func(cfg *drivers.TaskConfig) { cfg.AllocDir += "/none" }, says: "open the allocation's directory: "},
		"none of the task":          {change: func(cfg *drivers.TaskConfig) { cfg.Name = "none" }, says: "open the allocation's directory: "},
		"a volume that is away":     {change: volume("/nowhere", ""), says: `volume at "/vol": `},
		"a volume's propagation":    {change: volume(local, "sideways"), says: `volume at "/vol": `},
		"a volume that is private":  {change: volume(unshared.Mounts[1].Source, "bidirectional"), says: "propagation needs a shared mount"},
		"a file that is away":       {config: mount("local/none"), says: `mounts: target "/data": path "local/none" is not in the task directory`},
		"a link that leads nowhere": {config: mount("local/nowhere"), says: "is not in the task directory"},
		"a directory that is away":  {config: mount("none/file"), says: "is not in the task directory"},
		"its directory":             {config: mount("."), says: "is not the task's"},
		"Nomad's":                   {config: mount("private/file"), says: "is not the task's"},
		"another task's":            {config: mount("../other"), says: "leaves the task directory"},
		"a device":                  {config: mount("local/device"), says: "is a device; see devices"},
		"propagation":               {config: propagated, says: "mounts: "},
		"a source that is private":  {config: unshared, policy: everything, says: `mounts: target "/data": propagation needs a shared mount`},
		"one of the host":           {config: mount("/etc"), policy: everything, shown: 7},
		"one that is away":          {config: mount("/nowhere"), policy: everything, says: "no such file"},
		"one that is not allowed":   {config: mount("/etc"), policy: taskconfig.Policy{VolumesEnabled: true, AllowPaths: []string{"/srv"}}, says: "is not allowed on this node"},
		"a link to one that is not": {config: mount(filepath.Join(local, "link")), policy: taskconfig.Policy{VolumesEnabled: true, AllowPaths: []string{local}}, says: `"/etc/passwd" is not allowed`},
	} {
		cfg := *good
		if row.change != nil {
			row.change(&cfg)
		}
		files, err := openTaskFiles(&cfg, row.config, row.policy)
		if row.says != "" {
			must.ErrorContains(t, err, row.says, must.Sprint(name))
		} else {
			must.NoError(t, err, must.Sprint(name))
			must.Len(t, row.shown, files.shown, must.Sprint(name))
			files.close()
		}
	}
	must.NoError(t, os.RemoveAll(filepath.Join(good.AllocDir, "alloc/logs")))
	must.NoError(t, os.WriteFile(filepath.Join(good.AllocDir, "alloc/logs"), nil, 0o600))
	_, err := openTaskFiles(good, taskconfig.Config{}, everything)
	must.ErrorContains(t, err, `"alloc/logs" is not a directory`)
}

// A seccomp profile is the author's file, and one that cannot be read or is none stops the
// start: without it the task would run under another.
func TestProfilesThatCannotBeRead(t *testing.T) {
	cfg := allocated(t)
	local := filepath.Join(cfg.AllocDir, "web", "local")
	for name, text := range map[string]string{"good": `{"defaultAction":"SCMP_ACT_ERRNO"}`, "cut": `{"defaultAction"`, "large": strings.Repeat(" ", maxProfile+1)} {
		must.NoError(t, os.WriteFile(filepath.Join(local, name), []byte(text), 0o600))
	}
	for path, says := range map[string]string{
		"local/none": "seccomp_profile: path", "local/cut": `seccomp_profile "local/cut": `, "local/large": `seccomp_profile "local/large": `, "local": `seccomp_profile "local": `,
	} {
		_, err := seccompProfile(cfg, taskconfig.Config{SeccompProfile: path}, taskconfig.Policy{})
		must.ErrorContains(t, err, says)
	}
	profile, err := seccompProfile(cfg, taskconfig.Config{SeccompProfile: "local/good"}, taskconfig.Policy{})
	must.NoError(t, err)
	must.Eq(t, specs.ActErrno, profile.DefaultAction)
	profile, err = seccompProfile(cfg, taskconfig.Config{}, taskconfig.Policy{})
	must.NoError(t, err)
	must.Nil(t, profile)
	cfg.AllocDir += "/none"
	_, err = seccompProfile(cfg, taskconfig.Config{SeccompProfile: "local/good"}, taskconfig.Policy{})
	must.ErrorContains(t, err, "open the allocation's directory: ")
}

// An image is a regular file of the task, a reference, or none.
func TestImagesThatAreNone(t *testing.T) {
	d, env := alone(t)
	cfg := allocated(t)
	local := filepath.Join(cfg.AllocDir, "web", "local")
	must.NoError(t, os.WriteFile(filepath.Join(local, "image.tar"), nil, 0o600))
	must.NoError(t, os.Mkdir(filepath.Join(local, "dir.tar"), 0o700))
	over, cancel := context.WithCancel(t.Context())
	cancel()
	for image, says := range map[string]string{
		"local/none.tar": "image: path", "local/dir.tar": rooted.ErrKind.Error(), "local/image.tar": `image "local/image.tar": `, "NOT a reference": `image "NOT a reference" is not a reference`,
	} {
		_, err := d.image(over, env, cfg, taskconfig.Config{Image: image})
		must.ErrorContains(t, err, says)
	}
	cfg.AllocDir += "/none"
	_, err := d.image(over, env, cfg, taskconfig.Config{Image: "local/image.tar"})
	must.ErrorContains(t, err, "open the allocation's directory: ")
}

// Devices that no CDI spec of the operator describes are named, and a spec that cannot be
// applied stops the start.
func TestCDIDevicesThatAreNotDescribed(t *testing.T) {
	dir := t.TempDir()
	must.NoError(t, os.WriteFile(filepath.Join(dir, "gpu.json"), []byte(`{"cdiVersion":"0.5.0","kind":"example.com/gpu","devices":[
{"name":"good","containerEdits":{"env":["GOOD=1","A=evil"],"mounts":[{"hostPath":"/a","containerPath":"/bin/nvidia-cuda-mps-control"},{"hostPath":"/b","containerPath":"/b"}],"hooks":[{"hookName":"createContainer","path":"/hook"}]}},
{"name":"away","containerEdits":{"deviceNodes":[{"path":"/dev/of-nowhere"}]}}]}`), 0o600))
	inject := func(names ...string) (*specs.Spec, error) {
		s := &specs.Spec{Process: &specs.Process{Env: []string{"A=b"}}, Linux: &specs.Linux{}}
		return s, cdiDevices([]string{dir}, names)(t.Context(), nil, nil, (*oci.Spec)(s))
	}
	_, err := inject("example.com/gpu=good", "example.com/gpu=none")
	must.ErrorContains(t, err, "no CDI spec in "+dir+" describes example.com/gpu=none")
	_, err = inject("example.com/gpu=away")
	must.ErrorContains(t, err, "inject CDI devices example.com/gpu=away: ")
	s, err := inject("example.com/gpu=good")
	must.NoError(t, err)
	must.Eq(t, []string{"A=b", "GOOD=1"}, s.Process.Env)
	must.Len(t, 1, s.Mounts)
	must.Eq(t, "/b", s.Mounts[0].Destination)
	must.Eq(t, []string{hookPath}, s.Hooks.CreateContainer[0].Env)
	s, err = inject()
	must.NoError(t, err)
	must.Eq(t, []string{"A=b"}, s.Process.Env)
}

// A login that is a token has no user; a helper that knows none gives none.
func TestLoginsByToken(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "config.json")
	must.NoError(t, os.WriteFile(path, []byte(`{"auths":{"a.example":{"identitytoken":"of a"},"b.example":{"auth":"dXNlcjpwYXNz"}}}`), 0o600))
	program := `#!/bin/sh
read server
case $server in
c.example) echo '{"Username":"<token>","Secret":"of c"}' ;;
d.example) echo '{"Username":"user","Secret":"of d"}' ;;
*) echo 'credentials not found in native keychain'; exit 1 ;;
esac
`
	must.NoError(t, os.WriteFile(filepath.Join(dir, "docker-credential-test"), []byte(program), 0o700))
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	for host, want := range map[string]string{"a.example": " of a", "b.example": "user pass", "c.example": " of c", "d.example": "user of d", "e.example": " "} {
		user, secret, err := credentialsFor(taskconfig.Auth{}, "", nil, config.AuthConfig{Config: path, Helper: "test"})(host)
		must.NoError(t, err)
		must.Eq(t, want, user+" "+secret, must.Sprint(host))
	}
}

// The files of a task's network are written whole, or the task does not start.
func TestNetworkFilesThatCannotBeWritten(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("mounts need root")
	}
	_, env := alone(t)
	p := &startPlan{env: env, files: &taskFiles{}, cfg: &drivers.TaskConfig{Name: "web", AllocID: "0123456789"}}
	must.NoError(t, p.setStage("box"))
	t.Cleanup(func() { must.NoError(t, rooted.RemoveStage(p.stage.Dir())) })
	mounts, err := p.networkFiles()
	must.NoError(t, err)
	must.Len(t, 1, mounts)
	p.cfg.DNS = &drivers.DNSConfig{Servers: []string{"10.0.0.1"}}
	must.NoError(t, os.Remove(filepath.Join(p.stage.Dir(), "hosts")))
	mounts, err = p.networkFiles()
	must.NoError(t, err)
	must.Len(t, 2, mounts)
	for _, name := range []string{"hosts", "resolv.conf"} {
		path := filepath.Join(p.stage.Dir(), name)
		must.NoError(t, os.RemoveAll(path))
		must.NoError(t, os.Mkdir(path, 0o700))
		_, err := p.networkFiles()
		must.ErrorContains(t, err, "is a directory", must.Sprint(name))
		must.NoError(t, os.Remove(path))
	}
	// Of a namespace that cannot be entered no gateway is known.
	p.config.ExtraHosts = []string{"gate:host-gateway"}
	p.cfg.NetworkIsolation = &drivers.NetworkIsolationSpec{Mode: drivers.NetIsolationModeGroup, Path: "/nowhere"}
	_, err = p.networkFiles()
	must.ErrorContains(t, err, "extra_hosts: gate:host-gateway: ")
}

// What the node lacks of what a task asks for is named by its key.
func TestNodesThatLackAProgram(t *testing.T) {
	_, env := alone(t)
	env.settings.InitPath = "/nowhere/init"
	err := checkNode(t.Context(), env.runtime, taskconfig.Config{Init: true}, env.settings)
	must.ErrorContains(t, err, `init_path is "/nowhere/init"`)
	must.NoError(t, checkNode(t.Context(), env.runtime, taskconfig.Config{}, env.settings))
	over, cancel := context.WithCancel(t.Context())
	cancel()
	must.Error(t, checkNode(over, env.runtime, taskconfig.Config{Snapshotter: "overlayfs"}, env.settings))
}

// What the driver counts is not written over what cannot be read.
func TestCountsThatCannotBeRead(t *testing.T) {
	_, env := alone(t)
	var c counts
	c.kill(errors.New("why"))
	path := filepath.Join(env.settings.StateDir, "driver.json")
	must.NoError(t, c.save(env.state))
	before, err := env.state.DriverCounts()
	must.NoError(t, err)
	must.Eq(t, 1, before.Kills["other"])
	text, err := os.ReadFile(path)
	must.NoError(t, err)
	must.NoError(t, os.WriteFile(path, []byte("{"), 0o600))
	var again counts // of the driver that comes next
	again.kill(errors.New("why"))
	must.Error(t, again.save(env.state))
	spoiled, err := os.ReadFile(path)
	must.NoError(t, err)
	must.Eq(t, "{", string(spoiled))
	must.NoError(t, os.WriteFile(path, text, 0o600))
	must.NoError(t, again.save(env.state))
	after, err := env.state.DriverCounts()
	must.NoError(t, err)
	must.Eq(t, 2, after.Kills["other"])
}

// Files that a start looks at are closed again, whatever comes of it.
func TestFilesAreClosedAgain(t *testing.T) {
	cfg := allocated(t)
	d, env := alone(t)
	local := filepath.Join(cfg.AllocDir, "web", "local")
	cgroupstest.Fill(t, local, map[string]string{"image.tar": "", "good": `{"defaultAction":"SCMP_ACT_ERRNO"}`, "cut": "{", "config.json": `{"auths":{}}`})
	must.NoError(t, os.Symlink("/etc/passwd", filepath.Join(local, "link")))
	over, cancel := context.WithCancel(t.Context())
	cancel()
	defer debug.SetGCPercent(debug.SetGCPercent(-1)) // it would close what was left open
	mount := func(source string) taskconfig.Config {
		return taskconfig.Config{Mounts: []taskconfig.MountConfig{{Type: "bind", Source: source, Target: "/data"}}}
	}
	files := func(config taskconfig.Config) func() {
		return func() {
			files, err := openTaskFiles(cfg, config, taskconfig.Policy{VolumesEnabled: true, AllowPaths: []string{local}})
			if err == nil {
				files.close()
			}
		}
	}
	profile := func(path string) func() {
		return func() { _, _ = seccompProfile(cfg, taskconfig.Config{SeccompProfile: path}, taskconfig.Policy{}) }
	}
	for name, do := range map[string]func(){
		"image":         func() { _, _ = d.image(over, env, cfg, taskconfig.Config{Image: "local/image.tar"}) },
		"directory":     func() { _, _ = d.image(over, env, cfg, taskconfig.Config{Image: "local"}) },
		"files":         files(taskconfig.Config{}),
		"a mount":       files(mount("local/good")),
		"none there":    files(mount("local/none")),
		"of the host":   files(mount(local)),
		"not allowed":   files(mount(filepath.Join(local, "link"))),
		"profile":       profile("local/good"),
		"cut profile":   profile("local/cut"),
		"login":         func() { _, _, _ = fromDockerConfig(filepath.Join(local, "config.json"), "a.example") },
		"no login":      func() { _, _, _ = fromDockerConfig(filepath.Join(local, "cut"), "a.example") },
		"its namespace": func() { _, _ = holdNamespace("net", func() (runtime.Status, error) { return runtime.Status{}, nil }) },
	} {
		do() // what is opened once for good is open now
		before := descriptors()
		do()
		eventually(t, "nothing stays open after "+name, func() bool { return descriptors() <= before })
	}
}
