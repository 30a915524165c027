package main

import (
	"archive/tar"
	"compress/gzip"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/CycloneDX/cyclonedx-go"
)

// programsOf makes a folder in which one program stands for all four.
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
	return release{version: "1.2.3+abc", date: time.Unix(1767225600, 0).UTC(), arch: "arm64", bin: bin, files: "files", out: out}
}

// made makes a release of a program that does nothing, and returns where.
func made(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "main.go"), []byte("package main\n\nfunc main() {}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	program, out := filepath.Join(dir, "nothing"), filepath.Join(dir, "out")
	if text, err := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", program, filepath.Join(dir, "main.go")).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	if err := releaseOf(programsOf(t, program), out).make(); err != nil {
		t.Fatal(err)
	}
	if err := checksums(out); err != nil {
		t.Fatal(err)
	}
	return out
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
	first, second := made(t), made(t)
	sums := read(t, first, "SHA256SUMS")
	if again := read(t, second, "SHA256SUMS"); again != sums {
		t.Errorf("the first time it is\n%sand the second\n%s", sums, again)
	}
	for _, name := range []string{
		"nomad-gpu-plugins_1.2.3+abc_arm64.deb", "nomad-gpu-scheduler_1.2.3+abc_arm64.deb",
		"nomad-gpu-plugins-1.2.3+abc-1.aarch64.rpm", "nomad-gpu-scheduler-1.2.3+abc-1.aarch64.rpm",
		"nomad-gpu_1.2.3+abc_linux_arm64.tar.gz", "nomad-gpu_1.2.3+abc_linux_arm64.cdx.json",
	} {
		if !strings.Contains(sums, "  "+name+"\n") {
			t.Errorf("%s is not in\n%s", name, sums)
		}
	}
	check := exec.Command("sha256sum", "--check", "--quiet", "SHA256SUMS")
	check.Dir = first
	if out, err := check.CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
}

func TestTarballHasProgramsAndFiles(t *testing.T) {
	in, err := os.Open(filepath.Join(made(t), "nomad-gpu_1.2.3+abc_linux_arm64.tar.gz"))
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
		modes[strings.TrimPrefix(header.Name, "nomad-gpu_1.2.3+abc_linux_arm64/")] = header.Mode
	}
	for name, mode := range map[string]int64{"nomad-device-gpu": 0o755, "nomad-gpu-doctor": 0o755, "nomad-gpu-self": 0o755, "gpu-sim": 0o755, "nomad-gpu.hcl": 0o644, "nomad-gpu-scheduler.service": 0o644} {
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
	if err := json.Unmarshal([]byte(read(t, out, "nomad-gpu_1.2.3+abc_linux_arm64.cdx.json")), &bom); err != nil {
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
	if bom.Metadata.Component.Version != "1.2.3+abc" || bom.Metadata.Timestamp != "2026-01-01T00:00:00Z" {
		t.Errorf("it is of %+v", bom.Metadata)
	}
}

func TestDebianPackages(t *testing.T) {
	if _, err := exec.LookPath("dpkg-deb"); err != nil {
		t.Skip("dpkg-deb is not there")
	}
	out := made(t)
	for name, wants := range map[string][]string{
		"nomad-gpu-plugins_1.2.3+abc_arm64.deb": {
			"Architecture: arm64", "Depends: libc6 (>= 2.34), containerd", "./opt/nomad/plugins/nomad-driver-containerd",
			"./usr/bin/nomad-device-gpu -> /opt/nomad/plugins/nomad-device-gpu", "./usr/bin/nomad-gpu-doctor", "./usr/bin/nomad-gpu-self", "postrm",
		},
		"nomad-gpu-scheduler_1.2.3+abc_arm64.deb": {
			"Version: 1.2.3+abc", "./usr/lib/systemd/system/nomad-gpu-scheduler.service", "conffiles",
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
	r := release{version: "1.2.3", arch: "amd64", bin: t.TempDir(), files: "files", out: t.TempDir()}
	if err := r.make(); err == nil || !strings.Contains(err.Error(), "nomad-device-gpu") {
		t.Errorf("without programs: %v", err)
	}
	if err := (release{}).make(); err == nil {
		t.Error("a release of nothing is made")
	}
}
