// SPDX-License-Identifier: MPL-2.0

package main

import (
	"archive/tar"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/CycloneDX/cyclonedx-go"
)

// programsOf makes a folder in which one program stands for all.
func programsOf(t *testing.T, program string) string {
	t.Helper()
	bin := t.TempDir()
	for _, name := range programs {
		if err := os.Link(program, filepath.Join(bin, name)); err != nil {
			t.Fatal(err)
		}
	}
	return bin
}

func releaseOf(bin, out string) release {
	return release{version: "1.2.3+12.gabc", date: time.Unix(1767225600, 0).UTC(), arch: "arm64", bin: bin, host: bin, root: "../..", out: out}
}

// standIns are two programs: one that does nothing, packed in place of all that a release
// has, and one of ours, asked for its help in their place.
var standIns = sync.OnceValues(func() (dir string, err error) {
	if dir, err = os.MkdirTemp("", "release-test-"); err != nil {
		return "", err
	}
	if err := os.WriteFile(filepath.Join(dir, "nothing.go"), []byte("package main\n\nfunc main() {}\n"), 0o600); err != nil {
		return dir, err
	}
	for program, source := range map[string]string{"nothing": filepath.Join(dir, "nothing.go"), "helpful": "./plugin/nomad-gpu-self"} {
		build := exec.Command("go", "build", "-C", "../..", "-trimpath", "-buildvcs=false", "-ldflags", "-s -w", "-o", filepath.Join(dir, program), source)
		build.Env = append(build.Environ(), "CGO_ENABLED=0")
		if text, err := build.CombinedOutput(); err != nil {
			return dir, fmt.Errorf("%w: %s", err, text)
		}
	}
	return dir, nil
})

// common is a release that tests only read.
var common string

func TestMain(m *testing.M) {
	code := m.Run()
	for _, dir := range []string{common, built} {
		os.RemoveAll(dir)
	}
	os.Exit(code)
}

// built is where the stand-ins are.
var built string

// made makes a release of a version, and returns where.
func made(t *testing.T, version string) string {
	t.Helper()
	var err error
	if built, err = standIns(); err != nil {
		t.Fatal(err)
	}
	r := releaseOf(programsOf(t, filepath.Join(built, "nothing")), t.TempDir())
	r.version, r.host = version, programsOf(t, filepath.Join(built, "helpful"))
	if err := r.make(); err != nil {
		t.Fatal(err)
	}
	return r.out
}

// releaseToRead is one release for all tests that change nothing of it.
func releaseToRead(t *testing.T) string {
	t.Helper()
	if common == "" {
		dir, err := os.MkdirTemp("", "release-test-")
		if err != nil {
			t.Fatal(err)
		}
		if err := os.CopyFS(dir, os.DirFS(made(t, "1.2.3+12.gabc"))); err != nil {
			t.Fatal(err)
		}
		common = dir
	}
	return common
}

func read(t *testing.T, folder, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(folder, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestAReleaseIsTheSameEveryTime(t *testing.T) {
	first, second := releaseToRead(t), made(t, "1.2.3+12.gabc")
	const list = "nomad-gpu_1.2.3+12.gabc_linux_arm64.SHA256SUMS"
	sums := read(t, first, list)
	if again := read(t, second, list); again != sums {
		t.Errorf("the first time it is\n%sand the second\n%s", sums, again)
	}
	for _, name := range []string{
		"nomad-gpu-plugins_1.2.3+12.gabc_arm64.deb", "nomad-gpu-scheduler_1.2.3+12.gabc_arm64.deb",
		"nomad-gpu-plugins-1.2.3+12.gabc-1.aarch64.rpm", "nomad-gpu-scheduler-1.2.3+12.gabc-1.aarch64.rpm",
		"nomad-gpu_1.2.3+12.gabc_linux_arm64.tar.gz", "nomad-gpu_1.2.3+12.gabc_linux_arm64.cdx.json",
	} {
		if !strings.Contains(sums, "  "+name+"\n") {
			t.Errorf("%s is not in\n%s", name, sums)
		}
	}
	check := exec.Command("sha256sum", "--check", "--quiet", list)
	check.Dir = first
	if out, err := check.CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
}

func TestTarballHasProgramsAndFiles(t *testing.T) {
	in, err := os.Open(filepath.Join(releaseToRead(t), "nomad-gpu_1.2.3+12.gabc_linux_arm64.tar.gz"))
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	zip, err := gzip.NewReader(in)
	if err != nil {
		t.Fatal(err)
	}
	modes := map[string]int64{}
	for archive := tar.NewReader(zip); ; {
		header, err := archive.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		modes[strings.TrimPrefix(header.Name, "nomad-gpu_1.2.3+12.gabc_linux_arm64/")] = header.Mode
	}
	for name, mode := range map[string]int64{"nomad-device-gpu": 0o755, "nomad-gpu-doctor": 0o755, "nomad-gpu-self": 0o755, "gpu-sim": 0o755, "nomad-gpu.hcl": 0o644, "nomad-gpu-scheduler.service": 0o644,
		"share/man/man1/gpu-sim.1.gz": 0o644, "share/doc/nomad-gpu-plugins/copyright": 0o644, "share/doc/nomad-gpu-plugins/examples/slice.nomad.hcl": 0o644} {
		if modes[name] != mode {
			t.Errorf("%s has mode %o, want %o", name, modes[name], mode)
		}
	}
}

func TestBillOfMaterialsHasTheModules(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	out, bin := t.TempDir(), programsOf(t, self)
	// gpu-sim's module has the main module replaced by the one in this repository.
	if text, err := exec.Command("go", "build", "-C", "../../lab", "-o", bin+"/", "./cmd/gpu-sim").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	if err := releaseOf(bin, out).bill(); err != nil {
		t.Fatal(err)
	}
	var bom cyclonedx.BOM
	if err := json.Unmarshal([]byte(read(t, out, "nomad-gpu_1.2.3+12.gabc_linux_arm64.cdx.json")), &bom); err != nil {
		t.Fatal(err)
	}
	for _, module := range []string{"std", "github.com/CycloneDX/cyclonedx-go", "github.com/goreleaser/nfpm/v2"} {
		if !slices.ContainsFunc(*bom.Components, func(c cyclonedx.Component) bool { return c.Name == module && c.Version != "" }) {
			t.Errorf("%s is not in it", module)
		}
	}
	for _, c := range *bom.Components {
		if c.Version == "" {
			t.Errorf("%s has no version", c.Name)
		}
	}
	if bom.Metadata.Component.Version != "1.2.3+12.gabc" || bom.Metadata.Timestamp != "2026-01-01T00:00:00Z" {
		t.Errorf("it is of %+v", bom.Metadata)
	}
}

func TestDebianPackages(t *testing.T) {
	if _, err := exec.LookPath("dpkg-deb"); err != nil {
		t.Skip("dpkg-deb is not there")
	}
	out := releaseToRead(t)
	for name, wants := range map[string][]string{
		"nomad-gpu-plugins_1.2.3+12.gabc_arm64.deb": {
			"Architecture: arm64", "Depends: libc6 (>= 2.34), containerd", "./opt/nomad/plugins/nomad-driver-containerd",
			"./usr/bin/nomad-device-gpu -> /opt/nomad/plugins/nomad-device-gpu", "./usr/bin/nomad-gpu-doctor", "./usr/bin/nomad-gpu-self", "postrm",
		},
		"nomad-gpu-scheduler_1.2.3+12.gabc_arm64.deb": {
			"Version: 1.2.3+12.gabc", "./usr/lib/systemd/system/nomad-gpu-scheduler.service", "conffiles",
			"-rw------- root/root", "./etc/nomad-gpu/scheduler.hcl", "prerm",
		},
	} {
		var said strings.Builder
		for _, option := range []string{"--info", "--contents"} {
			text, err := exec.Command("dpkg-deb", option, filepath.Join(out, name)).CombinedOutput()
			if err != nil {
				t.Fatalf("%v: %s", err, text)
			}
			said.Write(text)
		}
		for _, want := range wants {
			if !strings.Contains(said.String(), want) {
				t.Errorf("%s: %q is not in\n%s", name, want, said.String())
			}
		}
	}
}

func TestScriptsAreShell(t *testing.T) {
	scripts, err := filepath.Glob("files/*.*install")
	if err != nil {
		t.Fatal(err)
	}
	removes, err := filepath.Glob("files/*remove")
	if err != nil {
		t.Fatal(err)
	}
	for _, script := range append(scripts, removes...) {
		if out, err := exec.Command("sh", "-n", script).CombinedOutput(); err != nil {
			t.Errorf("%s: %v: %s", script, err, out)
		}
	}
	if len(scripts)+len(removes) != 5 {
		t.Errorf("there are %d scripts", len(scripts)+len(removes))
	}
}

func TestWhatIsMissingIsSaid(t *testing.T) {
	r := releaseOf(t.TempDir(), t.TempDir())
	if err := r.make(); err == nil || !strings.Contains(err.Error(), "nomad-device-gpu") {
		t.Errorf("without programs: %v", err)
	}
	if err := (release{}).make(); err == nil {
		t.Error("a release of nothing is made")
	}
}

// A release of one architecture needs neither root nor what only tests need.
func TestMakeReleaseBuildsNothingElse(t *testing.T) {
	plan, err := exec.Command("make", "--no-print-directory", "-n", "-C", "../..", "release", "ARCH=amd64").Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, needless := range []string{"e2e/prepare", "arm64"} {
		if strings.Contains(string(plan), needless) {
			t.Errorf("make release ARCH=amd64 runs %s:\n%s", needless, plan)
		}
	}
	if !strings.Contains(string(plan), "internal/release/build") {
		t.Errorf("make would run\n%s", plan)
	}
}

// The plugins' commands are on PATH, as the package has them.
func TestMakeInstallLinksThePlugins(t *testing.T) {
	dir, destination := t.TempDir(), t.TempDir()
	put(t, filepath.Join(dir, "GNUmakefile"), read(t, "../..", "GNUmakefile"), 0o644)
	for _, name := range programs {
		put(t, filepath.Join(dir, "bin", name), name, 0o755)
	}
	does := func(target string, more ...string) {
		t.Helper()
		if out, err := exec.Command("make", append([]string{"-C", dir, "-o", "programs", target, "DESTDIR=" + destination}, more...)...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	does("install")
	for _, plugin := range []string{"nomad-device-gpu", "nomad-driver-containerd"} {
		if to, err := os.Readlink(filepath.Join(destination, "usr/local/bin", plugin)); err != nil || to != "/opt/nomad/plugins/"+plugin {
			t.Errorf("%s leads to %q: %v", plugin, to, err)
		}
	}
	does("uninstall")
	does("install", "PREFIX=/one/place", "BINDIR=/one/place") // where a link would take the program's place
	for _, name := range programs {
		if text := read(t, destination, "one/place/"+name); text != name {
			t.Errorf("%s is %q", name, text)
		}
	}
	does("uninstall", "PREFIX=/one/place", "BINDIR=/one/place")
	if left := (manager{t, destination}).has(); len(left) > 0 {
		t.Errorf("uninstall leaves %v", left)
	}
}
