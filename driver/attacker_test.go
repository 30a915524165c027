// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"archive/tar"
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/plugins/drivers"
	ispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/nomad-gpu/nomad-gpu/internal/taskconfig"
	"github.com/nomad-gpu/nomad-gpu/internal/testimage"
)

// attacker makes hostile jobs: what an author writes, what lies in the image and in
// the allocation's directories, and what is swapped while the task starts. The same
// seed makes the same job.
type attacker struct {
	*rand.Rand
	// dirs and files are the prey: of the host, and of a neighbor's allocation.
	dirs, files []string
}

// attack is one hostile job.
type attack struct {
	config  taskconfig.Config
	name    string
	user    string
	volumes []*drivers.MountConfig
	dns     *drivers.DNSConfig
	image   []tar.Header
	plants  []plant
	swaps   []swap
	// pipes is whether the output goes to pipes in the allocation's directory.
	pipes bool
}

// plant is a file that an artifact, a template or another task left.
type plant struct {
	path string // in the allocation's directory
	kind byte   // as of archive/tar
	to   string
}

// swap makes a planted file and a link change places while the task starts.
type swap struct{ path, to string }

func (a *attacker) chance(percent int) bool { return a.IntN(100) < percent }

func pick[T any](a *attacker, from ...T) T { return from[a.IntN(len(from))] }

// prey is where a link leads to.
func (a *attacker) prey() string {
	path := pick(a, append(append([]string{}, a.dirs...), a.files...)...)
	if a.chance(60) {
		return pick(a, path, path, climb+path, "/proc/self/root"+path)
	}
	return pick(a, "/proc/1/root"+path, "/", "..", "/proc", "/proc/sys/kernel", "/sys/fs/cgroup", "/dev", "/dev/pts", "/dev/null", "/alloc", "/local", "/alloc/logs", "/etc", filepath.Dir(path))
}

// attackPlaces are where mounts and links may do harm, and forbiddenPlaces where
// the words alone are refused.
var (
	attackPlaces = []string{
		"/x", "/y", "/x/y", "/x/y/z", "/data", "/local/x", "/local/x/y", "/alloc/x", "/alloc/data/z", "/alloc/logs/x", "/secrets/x",
		"/etc/app", "/tmp", "/tmp/x", "/run/x", "/dev/shm", "/var/x",
	}
	forbiddenPlaces = []string{"/etc", "/etc/hosts", "/dev/x", "/dev/null", "/proc/x", "/sys/x", "/home/../x", "/root/", "/alloc/logs"}
)

func (a *attacker) target() string {
	if a.chance(4) {
		return pick(a, forbiddenPlaces...)
	}
	return pick(a, attackPlaces...)
}

// source is what a mount, a profile or an image is made of.
func (a *attacker) source() string {
	if a.chance(92) {
		return pick(a, "local/x", "local/y", "local/x/y", "local", "secrets", "local/a/b", "tmp", "local/x/../y", "local/./x")
	}
	path := pick(a, append(append([]string{}, a.dirs...), a.files...)...)
	return pick(a, ".", "..", "private", "../alloc", "local/..", "local/../../x", "/alloc/x", path, "local/x"+path, climb+path, "local/"+climb+path)
}

func (a *attacker) mount() taskconfig.MountConfig {
	m := taskconfig.MountConfig{Type: pick(a, "", "bind", "volume", "tmpfs"), Target: a.target()}
	if m.Type != "tmpfs" {
		m.Source = a.source()
	}
	if a.chance(20) {
		m.Options = []string{pick(a, "ro", "rw", "bind", "rbind", "suid", "dev", "exec", "nosuid")}
	}
	if a.chance(5) {
		m.Propagation = pick(a, "rshared", "rslave", "private", "shared")
	}
	return m
}

// plantIn makes something that a task, an artifact or a template could have made.
func (a *attacker) plant(task string) plant {
	path := pick(a, task+"/local/x", task+"/local/x", task+"/local/y", task+"/local/a/b", task+"/local/x/y", task+"/tmp/x", "alloc/x", "alloc/data/x",
		"alloc/logs/x", task+"/hosts", task+"/resolv.conf", task+"/output-opened-by", task+"/foo", "alloc/logs/"+task+".stdout.0")
	p := plant{path: path, kind: pick(a, byte(tar.TypeSymlink), tar.TypeSymlink, tar.TypeSymlink, tar.TypeSymlink, tar.TypeDir, tar.TypeDir, tar.TypeDir, tar.TypeReg, tar.TypeFifo, tar.TypeChar)}
	if p.kind == tar.TypeSymlink {
		p.to = a.prey()
	}
	return p
}

// entry is a part of the image's upper layer.
func (a *attacker) entry() tar.Header {
	name := strings.TrimPrefix(pick(a, attackPlaces...), "/")
	name = pick(a, name, name, "etc/hosts", "etc/resolv.conf", "etc/passwd", "etc/group", "alloc", "local", "secrets", "dev", "proc", "sys", "run", "x", "y", climb+pick(a, a.dirs...)+"/evil")
	switch {
	case a.chance(70):
		return link(filepath.Clean(name), a.prey())
	case a.chance(15):
		return tar.Header{Typeflag: tar.TypeFifo, Name: name, Mode: 0o666}
	case a.chance(15):
		return tar.Header{Typeflag: tar.TypeLink, Name: name, Linkname: climb + pick(a, a.files...)}
	}
	return file(filepath.Clean(name) + pick(a, "", "/file", "/.wh.file"))
}

// attack makes a job. Most of its parts are harmless, or nothing would ever run.
func (a *attacker) attack(volume string) attack {
	h := attack{config: defaultTaskConfig(""), name: "web", pipes: a.chance(40)}
	h.config.Image = "local/image.tar"
	h.config.Entrypoint = []string{"sh", "-c", a.payload()}
	if a.chance(5) {
		h.name = pick(a, ".", "..", "50%", "a b", "-x", "%2e%2e", "web\n", "...", "alloc", "$(x)")
	}
	for range a.IntN(4) {
		h.config.Mounts = append(h.config.Mounts, a.mount())
	}
	for range a.IntN(3) {
		h.image = append(h.image, a.entry())
	}
	for range a.IntN(4) {
		h.plants = append(h.plants, a.plant(h.name))
	}
	for _, m := range h.config.Mounts {
		// What is mounted must be there, behind what was planted.
		if filepath.IsLocal(m.Source) {
			p := plant{path: h.name + "/" + filepath.Clean(m.Source), kind: tar.TypeDir}
			if a.chance(40) {
				p.kind, p.to = tar.TypeSymlink, a.prey()
			}
			h.plants = append(h.plants, p)
		}
	}
	if a.chance(25) {
		h.volumes = []*drivers.MountConfig{{HostPath: volume, TaskPath: a.target(), Readonly: a.chance(30), PropagationMode: pick(a, "", "", "", "private", "private", "host-to-task")}}
	}
	if a.chance(6) {
		h.dns = &drivers.DNSConfig{Searches: []string{pick(a, "example.test", "a\nb", strings.Repeat("x", 5000))}}
	}
	if a.chance(6) {
		h.config.ExtraHosts = []string{pick(a, "db:192.0.2.1", "a\nb:192.0.2.1", "x:host-gateway", strings.Repeat("x", 5000)+":192.0.2.1")}
	}
	if a.chance(10) {
		h.config.SeccompProfile = a.source()
	}
	if a.chance(5) {
		h.config.Image = a.source() + ".tar"
	}
	if a.chance(15) {
		h.user = pick(a, "app", "0", "1000:1000", "root:video", "ghost")
	}
	if a.chance(5) {
		h.config.Cwd = pick(a, "/x", "/proc/self/fd/7", "/proc/self/cwd", "/local/x")
	}
	if a.chance(10) {
		h.config.ReadonlyRootfs = true
	}
	if a.chance(5) {
		h.config.IPCMode = pick(a, "shareable", "host")
	}
	if a.chance(35) {
		h.swaps = []swap{{pick(a, h.name+"/local/x", h.name+"/local/y", h.name+"/local/image.tar", "alloc/x", "alloc/logs/."+h.name+".stdout.fifo"), a.prey()}}
	}
	return h
}

// payload looks for the prey in all places, as root as far as the task is.
func (a *attacker) payload() string {
	var script strings.Builder
	script.WriteString("for d in '' /proc/self/cwd /proc/1/root")
	for _, place := range attackPlaces {
		script.WriteString(" " + place)
	}
	script.WriteString("; do for p in")
	for _, dir := range append([]string{""}, a.dirs...) {
		script.WriteString(" '" + dir + "'")
	}
	// Only a prey that it reached has such a file, and such a name beside it.
	script.WriteString(`; do for f in "$d$p/file" "$d$p"; do [ -f "$f" ] && grep -s . "$f" && echo evil > "$f"; done; [ -e "$d$p/` + canaryName + `" ] && touch "$d$p/evil" && chmod 777 "$d$p" && rm -rf "$d$p/file"; done; done 2>/dev/null; `)
	script.WriteString(fmt.Sprintf("kill -9 -1 %s 2>/dev/null; true", neighborVariable))
	return script.String()
}

// neighborVariable stands for the PID of a process that must live on, and
// canaryName for a file beside each canary.
const (
	neighborVariable = "$NEIGHBOR"
	canaryName       = "canary-is-here"
)

// prepare makes the task of an attack, with its directories. Those of a task whose
// name is no name are another's: what Nomad makes of such a name is not tried here.
func (h attack) prepare(e *env, neighbor int) *drivers.TaskConfig {
	e.t.Helper()
	cfg := e.quietTask(h.config, func(cfg *drivers.TaskConfig) {
		if taskconfig.CheckTaskName(h.name) == nil {
			cfg.Name = h.name
		}
		cfg.User, cfg.Mounts, cfg.DNS = h.user, h.volumes, h.dns
		cfg.Env["NEIGHBOR"] = itoa(neighbor)
	})
	must.NoError(e.t, os.WriteFile(filepath.Join(cfg.TaskDir().LocalDir, "image.tar"), h.archive(e.t), 0o666))
	cfg.StdoutPath, cfg.StderrPath = filepath.Join(e.dir, cfg.AllocID+".out"), os.DevNull
	must.NoError(e.t, os.WriteFile(cfg.StdoutPath, nil, 0o600))
	if h.pipes {
		cfg.StdoutPath = filepath.Join(cfg.TaskDir().LogDir, "."+cfg.Name+".stdout.fifo")
		must.NoError(e.t, unix.Mkfifo(cfg.StdoutPath, 0o600))
	}
	for _, p := range h.plants {
		p.put(cfg.AllocDir)
	}
	cfg.Name = h.name
	return cfg
}

// archive is the image. An entry that no layer can hold makes it a broken one.
func (h attack) archive(t *testing.T) []byte {
	t.Helper()
	base, err := boxLayer()
	must.NoError(t, err)
	var layer, archive bytes.Buffer
	tw := tar.NewWriter(&layer)
	for _, entry := range h.image {
		must.NoError(t, tw.WriteHeader(&entry))
	}
	must.NoError(t, tw.Close())
	must.NoError(t, testimage.BuildLayers(&archive, "example.test/attack:1", [][]byte{base, layer.Bytes()}, ispec.ImageConfig{Env: []string{"PATH=/bin"}}))
	return archive.Bytes()
}

// put does what is possible, like whoever plants.
func (p plant) put(allocDir string) {
	path := filepath.Join(allocDir, p.path)
	if !strings.HasPrefix(path, allocDir+"/") {
		return // the name of the task leads out, which only the driver may get wrong
	}
	if resolved, err := filepath.EvalSymlinks(filepath.Dir(path)); err != nil || !strings.HasPrefix(resolved, allocDir) {
		return
	}
	switch p.kind {
	case tar.TypeSymlink:
		_ = os.Symlink(p.to, path)
	case tar.TypeDir:
		_ = os.MkdirAll(path, 0o777)
	case tar.TypeReg:
		// Not through a link that was planted before.
		if f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o666); err == nil {
			_, _ = f.WriteString(`{"defaultAction":"SCMP_ACT_ALLOW"}`)
			_ = f.Close()
		}
	case tar.TypeFifo:
		_ = unix.Mkfifo(path, 0o666)
	case tar.TypeChar:
		_ = unix.Mknod(path, unix.S_IFCHR|0o666, int(unix.Mkdev(1, 5)))
	}
}
