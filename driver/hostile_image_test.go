// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"archive/tar"
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/plugins/drivers"
	ispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/shoenig/test/must"

	"github.com/nomad-gpu/nomad-gpu/internal/testimage"
)

// hostileImage is the test image with what its author added to it.
type hostileImage struct {
	name string
	// entries are put into a layer above the test image's own, as they are.
	entries []tar.Header
	config  ispec.ImageConfig
	// user is the task's; the image's own is in config.
	user string
	// says is what the error holds; without it the task runs, and is contained.
	says string
}

// prey stands in links and paths for a directory of the host that no image may
// see or change.
const prey = "@PREY@"

func link(name, target string) tar.Header {
	return tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: target, Mode: 0o777}
}

func file(name string) tar.Header { return tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644} }

// climb leaves any directory that a layer may be unpacked in.
const climb = "../../../../../../../../../../../.."

var hostileImages = []hostileImage{
	{name: "file above the root", entries: []tar.Header{file(climb + prey + "/evil")}},
	{name: "absolute file", entries: []tar.Header{file(prey + "/evil")}},
	{name: "file behind a link", entries: []tar.Header{link("way", prey), file("way/evil")}},
	{name: "file behind a link that climbs", entries: []tar.Header{link("way", climb+prey), file("way/evil")}},
	{name: "hard link to a file of the host", entries: []tar.Header{{Typeflag: tar.TypeLink, Name: "stolen", Linkname: climb + prey + "/secret"}}, says: "no such file"},
	{name: "removal above the root", entries: []tar.Header{file(climb + prey + "/.wh.secret")}},
	{name: "etc is a link", entries: []tar.Header{{Typeflag: tar.TypeReg, Name: ".wh.etc"}, link("etc", prey)}},
	{name: "hosts is a link", entries: []tar.Header{link("etc/hosts", prey+"/evil")}},
	{name: "local is a link", entries: []tar.Header{link("local", climb+prey)}},
	{name: "proc is a link", entries: []tar.Header{link("proc", "/tmp")}, says: "proc"},
	{name: "secrets lead into proc", entries: []tar.Header{link("secrets", "/proc")}, says: "proc"},
	{name: "passwd is the host's", entries: []tar.Header{link("etc/passwd", climb+prey+"/passwd")}, user: "onlyhere", says: `user "onlyhere"`},
	{name: "passwd is a pipe", entries: []tar.Header{{Typeflag: tar.TypeFifo, Name: "etc/passwd", Mode: 0o644}}, user: "app", says: "etc/passwd is not a regular file"},
	{name: "group is a pipe", entries: []tar.Header{{Typeflag: tar.TypeFifo, Name: "etc/group", Mode: 0o644}}, user: "app", says: "etc/group is not a regular file"},

	{name: "unknown user", config: ispec.ImageConfig{User: "ghost"}, says: `user "ghost"`},
	{name: "unknown group", config: ispec.ImageConfig{User: "app:ghosts"}, says: `user "app:ghosts"`},
	{name: "negative user", config: ispec.ImageConfig{User: "-5"}, says: `"-5"`},
	{name: "user above the kernel's", config: ispec.ImageConfig{User: "4294967296"}, says: `"4294967296"`},
	{name: "user of three parts", config: ispec.ImageConfig{User: "a:b:c"}, says: `"a:b:c"`},
	{name: "giant variable", config: ispec.ImageConfig{Env: []string{"PATH=/bin", "BIG=" + strings.Repeat("x", 1<<18)}}, says: `variable "BIG" has 262148 bytes`},
	{name: "very many variables", config: ispec.ImageConfig{Env: manyVariables()}, says: "and 524288 are allowed"},
	{name: "variable with NUL", config: ispec.ImageConfig{Env: []string{"PATH=/bin", "A=b\x00c"}}, says: `variable "A" is not valid text`},
	{name: "variable without a name", config: ispec.ImageConfig{Env: []string{"PATH=/bin", "=x"}}},
	{name: "program that is not there", config: ispec.ImageConfig{Entrypoint: []string{"/no/such/program"}}, says: "/no/such/program"},
	{name: "program that is a directory", config: ispec.ImageConfig{Entrypoint: []string{"/tmp"}}, says: "/tmp"},
	{name: "command with NUL", config: ispec.ImageConfig{Entrypoint: []string{"sh\x00"}}, says: "is not valid text"},
	{name: "working directory that climbs", config: ispec.ImageConfig{WorkingDir: "../../.."}, says: `working directory "../../.." is not absolute`},
	{name: "working directory of a descriptor", config: ispec.ImageConfig{WorkingDir: "/proc/self/fd/8"}, says: "/proc/self/fd/8"},
	{name: "working directory behind a link", entries: []tar.Header{link("wd", "proc/self/fd/8")}, config: ispec.ImageConfig{WorkingDir: "/wd"}, says: `working directory "/wd" is "/proc/self/fd/8" in this container`},
	{name: "working directory in /dev", config: ispec.ImageConfig{WorkingDir: "/dev/fd/7"}, says: "/dev/fd/7"},
	{name: "working directory behind a link to /dev/fd", entries: []tar.Header{link("wd", "/dev/fd")}, config: ispec.ImageConfig{WorkingDir: "/wd/7"}, says: `working directory "/wd/7" is "/dev/fd/7" in this container`},
	{name: "working directory in /sys", entries: []tar.Header{link("wd", "/sys")}, config: ispec.ImageConfig{WorkingDir: "/wd/fs/cgroup"}, says: `"/sys/fs/cgroup"`},
	{name: "stop signal that is none", config: ispec.ImageConfig{StopSignal: "SIGNONSENSE"}, says: `stop signal "SIGNONSENSE"`},
	{name: "stop signal that no kernel has", config: ispec.ImageConfig{StopSignal: "4711"}, says: `stop signal "4711"`},
}

func manyVariables() []string {
	many := []string{"PATH=/bin"}
	for i := range 30000 {
		many = append(many, "VARIABLE_NUMBER_"+itoa(i)+"="+strings.Repeat("x", 80))
	}
	return many
}

// TestHostileImages runs images that reach for the host. Each is refused with an
// error that names what is wrong, or runs and is contained; the host keeps what
// it had, and nothing is left.
func TestHostileImages(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, e *env) {
		newNode(e)
		host := filepath.Join(e.dir, "prey")
		must.NoError(t, os.Mkdir(host, 0o777))
		must.NoError(t, os.WriteFile(filepath.Join(host, "secret"), []byte("top secret"), 0o600))
		must.NoError(t, os.WriteFile(filepath.Join(host, "passwd"), []byte("onlyhere:x:0:0::/:/bin/sh\n"), 0o644))
		for _, image := range drawnFrom(e, hostileImages) {
			config := defaultTaskConfig("")
			config.Image = "local/image.tar"
			cfg := e.quietTask(config, reserve(gpuA, 0), func(cfg *drivers.TaskConfig) { cfg.User = image.user })
			must.NoError(t, os.WriteFile(filepath.Join(cfg.TaskDir().LocalDir, "image.tar"), image.archive(t, host), 0o644))
			_, _, err := e.harness.StartTask(cfg)
			if image.says != "" {
				must.ErrorContains(t, err, image.says, must.Sprint(image.name))
			} else {
				must.NoError(t, err, must.Sprint(image.name))
				must.Eq(t, 0, e.wait(cfg.ID).ExitCode, must.Sprint(image.name))
				must.NoError(t, e.harness.DestroyTask(cfg.ID, true))
			}
			entries, err := os.ReadDir(host)
			must.NoError(t, err)
			must.Len(t, 2, entries, must.Sprintf("%s: the host's directory changed: %v", image.name, entries))
			must.Eq(t, nil, e.leftovers(), must.Sprint(image.name))
		}
	})
}

// archive is the image, with its prey.
func (h hostileImage) archive(t *testing.T, host string) []byte {
	t.Helper()
	base, err := boxLayer()
	must.NoError(t, err)
	var layer bytes.Buffer
	tw := tar.NewWriter(&layer)
	for _, entry := range h.entries {
		entry.Name = strings.ReplaceAll(entry.Name, prey, host)
		entry.Linkname = strings.ReplaceAll(entry.Linkname, prey, host)
		must.NoError(t, tw.WriteHeader(&entry))
	}
	must.NoError(t, tw.Close())
	config := h.config
	if config.Env == nil {
		config.Env = []string{"PATH=/bin"}
	}
	if config.Entrypoint == nil {
		config.Entrypoint = []string{"true"}
	}
	var archive bytes.Buffer
	must.NoError(t, testimage.BuildLayers(&archive, "example.test/hostile:1", [][]byte{base, layer.Bytes()}, config))
	return archive.Bytes()
}

// TestHostileArchives holds image archives that are none.
func TestHostileArchives(t *testing.T) {
	withContainerd(t, func(t *testing.T, e *env) {
		// Two images, since containerd goes on with what it has of a layer.
		build := func(name string) []byte {
			var archive bytes.Buffer
			must.NoError(t, buildTestImage(&archive, "example.test/"+name+filepath.Base(e.dir)+":1"))
			return archive.Bytes()
		}
		good, flipped := build("good"), build("flipped")
		at := bytes.Index(flipped, []byte("root:x:0:0::/:/bin/sh"))
		must.Greater(t, 0, at)
		flipped[at] ^= 1
		for name, archive := range map[string]struct {
			content []byte
			says    string
		}{
			"empty":               {nil, `image "local/image.tar"`},
			"cut off":             {good[:len(good)/2], `image "local/image.tar"`},
			"of another content":  {flipped, "does not hold"},
			"no tar":              {[]byte("#!/bin/sh\n"), `image "local/image.tar"`},
			"gzip that is broken": {[]byte("\x1f\x8b\x08\x00broken"), `image "local/image.tar"`},
		} {
			config := defaultTaskConfig("true")
			config.Image = "local/image.tar"
			cfg := e.quietTask(config)
			must.NoError(t, os.WriteFile(filepath.Join(cfg.TaskDir().LocalDir, "image.tar"), archive.content, 0o644))
			_, _, err := e.harness.StartTask(cfg)
			must.ErrorContains(t, err, archive.says, must.Sprint(name))
		}
		must.Eq(t, nil, e.leftovers())
	})
}
