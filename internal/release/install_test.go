// SPDX-License-Identifier: MPL-2.0

package main

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// root is a machine's file system with what scripts of packages call, and nothing else:
// neither systemd nor containerd.
func root(t *testing.T) string {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("only root can enter another root")
	}
	dir := t.TempDir()
	library := regexp.MustCompile(`(?m)(/\S+) \(0x`)
	for _, name := range []string{"sh", "awk", "rm", "rmdir", "wc", "sort", "umount", "cat"} {
		program, err := exec.LookPath(name)
		if err != nil {
			t.Fatal(err)
		}
		copies := map[string]string{program: "/bin/" + name}
		out, _ := exec.Command("ldd", program).Output() // fails for a static program, which has none
		for _, match := range library.FindAllStringSubmatch(string(out), -1) {
			copies[match[1]] = match[1]
		}
		for source, destination := range copies {
			content, err := os.ReadFile(source)
			if err != nil {
				t.Fatal(err)
			}
			put(t, filepath.Join(dir, destination), string(content), 0o755)
		}
	}
	return dir
}

func put(t *testing.T, path, content string, mode os.FileMode) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), mode); err != nil {
		t.Fatal(err)
	}
}

// manager is a package manager in a root of its own.
type manager struct {
	t    *testing.T
	root string
}

func (m manager) does(name string, args ...string) string {
	m.t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Env = append(cmd.Environ(), "DEBIAN_FRONTEND=noninteractive", "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
	out, err := cmd.CombinedOutput()
	if err != nil {
		m.t.Fatalf("%s: %v\n%s", cmd, err, out)
	}
	return string(out)
}

// has are the files of ours in the root.
func (m manager) has() (paths []string) {
	m.t.Helper()
	err := filepath.WalkDir(m.root, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && (strings.Contains(path, "nomad") || strings.Contains(path, "gpu-sim")) && !entry.IsDir() && !strings.Contains(path, "/lib/dpkg/") {
			paths = append(paths, strings.TrimPrefix(path, m.root))
		}
		return err
	})
	if err != nil {
		m.t.Fatal(err)
	}
	slices.Sort(paths)
	return paths
}

// wants are some files of each kind that both packages install.
var wants = []string{
	"/opt/nomad/plugins/nomad-device-gpu", "/usr/bin/nomad-device-gpu", "/usr/bin/nomad-gpu-scheduler",
	"/usr/share/doc/nomad-gpu-plugins/copyright", "/usr/share/doc/nomad-gpu-scheduler/copyright",
	"/usr/share/doc/nomad-gpu-plugins/third-party-licenses.gz", "/usr/share/doc/nomad-gpu-plugins/licenses.md",
	"/usr/share/man/man1/nomad-device-gpu.1.gz", "/usr/share/man/man1/gpu-sim.1.gz",
	"/usr/share/bash-completion/completions/nomad-gpu-scheduler",
	"/usr/share/fish/vendor_completions.d/nomad-gpu-self.fish",
	"/usr/share/nomad-gpu-plugins/grafana/nodes.json", "/usr/share/nomad-gpu-scheduler/alerts/service.rules.yml",
	"/usr/share/doc/nomad-gpu-plugins/examples/slice.nomad.hcl", "/usr/share/doc/nomad-gpu-scheduler/examples/service/policy.hcl",
	"/etc/nomad-gpu/scheduler.hcl", "/usr/lib/systemd/system/nomad-gpu-scheduler.service",
}

// lifecycle installs two releases after each other, removes the second, and says where the
// operator's changes are kept.
func lifecycle(t *testing.T, root string, install func(folder string) string, remove, purge func() string, kept string) {
	m := manager{t, root}
	first, second := releaseToRead(t), made(t, "1.2.4")
	if out := install(first); !strings.Contains(out, "example configuration") {
		t.Errorf("the first installation says nothing of the configuration:\n%s", out)
	}
	installed := m.has()
	for _, want := range wants {
		if !slices.Contains(installed, want) {
			t.Errorf("%s is not installed", want)
		}
	}
	put(t, filepath.Join(root, "etc/nomad-gpu/scheduler.hcl"), "# the operator's\n", 0o644)
	put(t, filepath.Join(root, "var/lib/nomad-gpu/state"), "kept", 0o600)
	if out := install(second); strings.Contains(out, "example configuration") {
		t.Errorf("an upgrade speaks to a newcomer:\n%s", out)
	}
	if text := read(t, root, "etc/nomad-gpu/scheduler.hcl"); text != "# the operator's\n" {
		t.Errorf("an upgrade wrote %q over the operator's", text)
	}
	if env, err := os.Stat(filepath.Join(root, "etc/nomad-gpu/scheduler.env")); err != nil || env.Mode().Perm() != 0o600 {
		t.Errorf("the file of tokens: %v, %v", env, err)
	}
	remove()
	for _, path := range m.has() {
		if !strings.HasPrefix(path, "/etc/nomad-gpu/") && !strings.HasPrefix(path, "/var/lib/nomad-gpu/") {
			t.Errorf("a removal leaves %s", path)
		}
	}
	if text := read(t, root, kept); text != "# the operator's\n" {
		t.Errorf("a removal leaves %q of the operator's", text)
	}
	if purge == nil {
		return
	}
	purge()
	if left := m.has(); len(left) > 0 {
		t.Errorf("a purge leaves %v", left)
	}
}

func TestDpkgInstallsUpgradesAndPurges(t *testing.T) {
	if _, err := exec.LookPath("dpkg"); err != nil {
		t.Skip("dpkg is not there")
	}
	dir := root(t)
	m := manager{t, dir}
	put(t, filepath.Join(dir, "var/lib/dpkg/status"), "", 0o644)
	for _, folder := range []string{"info", "updates", "triggers"} {
		if err := os.MkdirAll(filepath.Join(dir, "var/lib/dpkg", folder), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	dpkg := func(args ...string) string {
		return m.does("dpkg", append([]string{"--root=" + dir, "--force-depends", "--force-confold", "--force-architecture"}, args...)...)
	}
	lifecycle(t, dir, func(folder string) string {
		packages, _ := filepath.Glob(filepath.Join(folder, "*.deb"))
		return dpkg(append([]string{"-i"}, packages...)...)
	}, func() string { return dpkg("--remove", "nomad-gpu-plugins", "nomad-gpu-scheduler") },
		func() string { return dpkg("--purge", "nomad-gpu-plugins", "nomad-gpu-scheduler") }, "etc/nomad-gpu/scheduler.hcl")
}

func TestRpmInstallsUpgradesAndRemoves(t *testing.T) {
	if _, err := exec.LookPath("rpm"); err != nil {
		t.Skip("rpm is not there")
	}
	dir := root(t)
	m := manager{t, dir}
	rpm := func(args ...string) string {
		return m.does("rpm", append([]string{"--root", dir, "--dbpath", "/var/lib/rpm"}, args...)...)
	}
	rpm("--initdb")
	lifecycle(t, dir, func(folder string) string {
		packages, _ := filepath.Glob(filepath.Join(folder, "*.rpm"))
		return rpm(append([]string{"-U", "--nodeps", "--ignorearch", "--nosignature"}, packages...)...)
	}, func() string { return rpm("-e", "--nodeps", "nomad-gpu-plugins", "nomad-gpu-scheduler") },
		nil, "etc/nomad-gpu/scheduler.hcl.rpmsave")
}

// Manual pages are without faults for groff, and have what the programs say of themselves.
func TestManualPages(t *testing.T) {
	if _, err := exec.LookPath("man"); err != nil {
		t.Skip("man is not there")
	}
	r := releaseOf(t.TempDir(), t.TempDir())
	var err error
	if built, err = standIns(); err != nil {
		t.Fatal(err)
	}
	r.host = programsOf(t, filepath.Join(built, "helpful"))
	text, err := r.manual("nomad-gpu-self")
	if err != nil {
		t.Fatal(err)
	}
	page := filepath.Join(r.out, "nomad-gpu-self.1")
	put(t, page, text, 0o644)
	show := exec.Command("man", "--warnings", "-E", "ascii", "-l", page)
	show.Env = append(show.Environ(), "MANWIDTH=200", "MANROFFSEQ=", "MAN_KEEP_FORMATTING=")
	var faults strings.Builder
	show.Stderr = &faults
	out, err := show.Output()
	if err != nil || faults.Len() > 0 {
		t.Errorf("%v: %s", err, faults.String())
	}
	for _, want := range []string{"nomad-gpu-self - ask about a task's own share of a GPU", "Usage: nomad-gpu-self resize [options]", "compute=0.6"} {
		if !strings.Contains(string(out), want) {
			t.Errorf("%q is not in\n%s", want, out)
		}
	}
}
