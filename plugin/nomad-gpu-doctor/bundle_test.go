// SPDX-License-Identifier: MPL-2.0

package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/shoenig/test/must"

	driverconfig "github.com/nomad-gpu/nomad-gpu/driver/config"
)

func TestScrubbing(t *testing.T) {
	t.Setenv("REGISTRY_PASSWORD", "hunter2-long")
	t.Setenv("SHORT_TOKEN", "a")
	s := newScrubber("hunter2", "hunter2-longer")
	for text, want := range map[string]string{
		"nothing to see":                  "nothing to see",
		"plain hunter2 in text":           "plain (removed) in text",
		"hunter2-longer and hunter2-long": "(removed) and (removed)",
		"NOMAD_TOKEN=5f0e":                `NOMAD_TOKEN="(removed)"`,
		`"password": "a \"b\" c", "x": 1`: `"password": "(removed)", "x": 1`,
		`{\"api_key\":\"abc\"}`:           `{\"api_key\":"(removed)"}`,
		"password = 'x y'":                `password = "(removed)"`,
		"Authorization: Bearer abc.def":   `Authorization: "(removed)"`,
		"https://me:secretly@host/path":   "https://me:(removed)@host/path",
		"-----BEGIN EC PRIVATE KEY-----\nMHcC\n-----END EC PRIVATE KEY-----\nafter": "(removed)\nafter",
		"a task of 3 GPUs": "a task of 3 GPUs",
	} {
		must.Eq(t, want, s.scrub(text))
	}
}

// unpack reads a bundle, by the names below its folder.
func unpack(t *testing.T, path string) map[string]string {
	t.Helper()
	file, err := os.Open(path)
	must.NoError(t, err)
	defer file.Close()
	zip, err := gzip.NewReader(file)
	must.NoError(t, err)
	archive, files := tar.NewReader(zip), map[string]string{}
	for {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		must.NoError(t, err)
		text, err := io.ReadAll(archive)
		must.NoError(t, err)
		_, name, _ := strings.Cut(header.Name, "/")
		files[name] = string(text)
	}
}

// Secrets are planted wherever a node has them; what leaves it has none, and says all
// that a bug report needs.
func TestNoSecretLeaves(t *testing.T) {
	dir := t.TempDir()
	config := filepath.Join(dir, "nomad.hcl")
	plant := func(name, text string) {
		path := filepath.Join(dir, name)
		must.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		must.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	}
	plant("nomad.hcl", fmt.Sprintf(`
data_dir   = "%[1]s/nomad"
plugin_dir = "%[1]s/plugins"
consul { token = "hunter2-of-consul" }
plugin "nomad-device-gpu" {
  config {
    state_dir = "%[1]s/run"
    data_dir  = "%[1]s/data"
  }
}
plugin "nomad-driver-containerd" {
  config {
    socket = "%[1]s/containerd.sock"
    auth {
      username = "robot"
      password = "hunter2-of-auth"
    }
    registry {
      server_address = "registry.example"
      username       = "robot"
      password       = "hunter2-of-registry"
    }
  }
}`, dir))
	plant("run/leases/one.json", `{"job": "train", "note": "token=hunter2-of-lease"}`)
	plant("run/tasks/one.json", `{"env": "hunter2-of-record"}`)
	plant("run/mps/GPU-1/log/control.log", "a client said password: hunter2-of-mps\n"+strings.Repeat("x\n", maxFile))
	plant("data/devices.json", `{"devices": 2}`)
	t.Setenv("NOMAD_LICENSE_SECRET", "hunter2-of-process")
	playNomad(t, clientSelf, 200, healthyNode(nil))
	t.Setenv("NOMAD_TOKEN", "hunter2-of-acl")

	h := machine(t, nil, answers{
		"journalctl": "agent: hunter2-of-agent\nnomad-driver-containerd: pulled with hunter2-of-auth\nnomad-device-gpu: said hunter2-of-process to hunter2-of-acl\n",
		"nvidia-smi": "Driver 580", "docker": "fails: hunter2-of-acl is refused",
	})
	b := &bundle{at: time.Unix(1e9, 0), scrubber: newScrubber(driverconfig.Secrets(config)...)}
	b.collect(t.Context(), config, time.Hour, h)
	path := filepath.Join(dir, "bundle.tar.gz")
	must.NoError(t, b.write(path))
	must.ErrorIs(t, b.write(path), os.ErrExist)
	info, err := os.Stat(path)
	must.NoError(t, err)
	must.Eq(t, 0o600, info.Mode())

	files := unpack(t, path)
	for name, text := range files {
		must.StrNotContains(t, text, "hunter2", must.Sprint(name))
	}
	must.StrNotContains(t, strings.Join(b.missing, "\n"), "hunter2")
	for name, text := range map[string]string{
		"doctor.txt":                           "failed",
		"doctor.json":                          `"check": "containerd"`,
		"versions.txt":                         "Driver 580",
		"config/nomad-device-gpu.json":         dir + "/run",
		"config/nomad-driver-containerd.json":  "registry.example",
		"state" + dir + "/run/leases/one.json": `"job": "train"`,
		"state" + dir + "/data/devices.json":   `"devices": 2`,
		"logs/plugins.log":                     "pulled with",
		"nomad/node.json":                      "H100/0",
		"nomad/allocations.json":               "GPU-1::s0",
		"nomad/decisions.json":                 "job train was placed",
	} {
		must.StrContains(t, files[name], text, must.Sprint(name))
	}
	must.StrNotContains(t, files["nomad/allocations.json"], "web")
	must.MapNotContainsKey(t, files, "state"+dir+"/run/tasks/one.json")
	must.Eq(t, maxFile, len(files["state"+dir+"/run/mps/GPU-1/log/control.log"]))
}

// On a machine with nothing there is still a bundle, and it says what is not in it.
func TestBundleOfAnEmptyMachine(t *testing.T) {
	t.Setenv("NOMAD_ADDR", "http://127.0.0.1:1")
	out := filepath.Join(t.TempDir(), "b.tar.gz")
	var stdout, stderr bytes.Buffer
	must.Eq(t, 0, program.Run([]string{"bundle", "-config", "/nowhere", "-out", out}, &stdout, &stderr))
	for _, text := range []string{out + " has ", "Not in it: inventory.json", "Not in it: nomad: "} {
		must.StrContains(t, stdout.String(), text)
	}
	must.StrContains(t, unpack(t, out)["doctor.txt"], "failed")
	must.Eq(t, 1, program.Run([]string{"bundle", "-config", "/nowhere", "-out", out}, &stdout, &stderr))
	must.StrContains(t, stderr.String(), "file exists")
}
