// SPDX-License-Identifier: MPL-2.0

package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
)

// signed makes a release for this machine, signed with a key that is made for it, in a
// folder as "make release-sign" leaves it.
func signed(t *testing.T) (folder, home string) {
	t.Helper()
	for _, program := range []string{"gpg", "rpmsign", "apt-ftparchive", "createrepo_c"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skip(program + " is not there")
		}
	}
	var err error
	if built, err = standIns(); err != nil {
		t.Fatal(err)
	}
	folder = t.TempDir()
	if home, err = os.MkdirTemp("", "gpg-"); err != nil { // short, for the agent's socket
		t.Fatal(err)
	}
	t.Setenv("GNUPGHOME", home)
	t.Cleanup(func() {
		exec.Command("gpgconf", "--homedir", home, "--kill", "all").Run()
		os.RemoveAll(home)
	})
	m := manager{t, folder}
	m.does("gpg", "--batch", "--quiet", "--passphrase", "", "--quick-generate-key", "Releases <release@example>", "rsa2048", "sign", "never")
	for _, arch := range []string{"amd64", "arm64"} {
		r := releaseOf(programsOf(t, filepath.Join(built, "nothing")), filepath.Join(folder, arch))
		r.arch, r.version, r.host = arch, "1.2.3", programsOf(t, filepath.Join(built, "helpful"))
		if err := r.make(); err != nil {
			t.Fatal(err)
		}
	}
	m.does("./sign", folder, "release@example", "file://"+folder)
	return folder, home
}

// A signed release is what apt and dnf take, and what they refuse once it is changed.
func TestSignedReleaseIsARepository(t *testing.T) {
	folder, _ := signed(t)
	m := manager{t, folder}
	sums := "nomad-gpu_1.2.3_linux_amd64.SHA256SUMS"
	m.does("gpg", "--batch", "--verify", filepath.Join(folder, "amd64", sums+".asc"), filepath.Join(folder, "amd64", sums))
	m.does("sh", "-c", "cd "+filepath.Join(folder, "amd64")+" && sha256sum --check --quiet "+sums)
	if out, err := exec.Command("gpg", "--batch", "--verify", filepath.Join(folder, "amd64", sums+".asc"), filepath.Join(folder, "arm64", "nomad-gpu_1.2.3_linux_arm64.SHA256SUMS")).CombinedOutput(); err == nil {
		t.Errorf("the signature of one file is that of another:\n%s", out)
	}
	t.Run("apt", func(t *testing.T) { aptInstalls(t, folder) })
	t.Run("rpm", func(t *testing.T) { rpmTrusts(t, folder) })
	t.Run("dnf", func(t *testing.T) { dnfInstalls(t, folder) })
}

// aptInstalls has apt-get, in a root of its own, take the service from the repository.
func aptInstalls(t *testing.T, folder string) {
	dir := root(t)
	m := manager{t, dir}
	for _, path := range []string{"var/lib/dpkg/status", "var/lib/dpkg/available"} {
		put(t, filepath.Join(dir, path), "", 0o644)
	}
	for _, path := range []string{"var/lib/dpkg/info", "var/lib/dpkg/updates", "var/lib/dpkg/triggers", "var/lib/apt/lists/partial", "var/cache/apt/archives/partial", "var/log/apt", "etc/apt/preferences.d", "etc/apt/apt.conf.d"} {
		if err := os.MkdirAll(filepath.Join(dir, path), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	key := filepath.Join(dir, "etc/apt/keyrings/nomad-gpu.asc")
	put(t, key, read(t, folder, "nomad-gpu.asc"), 0o644)
	sources := strings.Replace(read(t, folder, "apt/nomad-gpu.sources"), "/etc/apt/keyrings/nomad-gpu.asc", key, 1)
	put(t, filepath.Join(dir, "etc/apt/sources.list.d/nomad-gpu.sources"), sources, 0o644)
	put(t, filepath.Join(dir, "apt.conf"), "Dir \""+dir+"\"; Dir::State::status \""+dir+"/var/lib/dpkg/status\"; APT::Architecture \""+runtime.GOARCH+"\"; APT::Architectures \"\"; APT::Sandbox::User \"root\"; DPkg::Options:: \"--root="+dir+"\";", 0o644)
	t.Setenv("APT_CONFIG", filepath.Join(dir, "apt.conf"))
	m.does("apt-get", "-q", "update")
	m.does("apt-get", "-q", "-y", "install", "nomad-gpu-scheduler")
	if _, err := os.Stat(filepath.Join(dir, "usr/bin/nomad-gpu-scheduler")); err != nil {
		t.Error(err)
	}
	index := filepath.Join(folder, "apt/dists/stable/InRelease")
	put(t, index, strings.Replace(read(t, folder, "apt/dists/stable/InRelease"), "Origin: nomad-gpu", "Origin: nomad-gpv", 1), 0o644)
	if out, err := exec.Command("apt-get", "-q", "-o", "APT::Update::Error-Mode=any", "update").CombinedOutput(); err == nil {
		t.Errorf("apt-get takes an index that its signature does not fit:\n%s", out)
	}
}

// rpmTrusts has rpm check the signatures of packages with the release's key only.
func rpmTrusts(t *testing.T, folder string) {
	dir := t.TempDir()
	m := manager{t, dir}
	packages, err := filepath.Glob(filepath.Join(folder, "rpm/*.rpm"))
	if err != nil || len(packages) != 4 {
		t.Fatalf("the packages are %v, %v", packages, err)
	}
	check := append([]string{"--dbpath", dir, "-K"}, packages...)
	if out, err := exec.Command("rpmkeys", check...).CombinedOutput(); err == nil {
		t.Errorf("without the key rpm says\n%s", out)
	}
	m.does("rpmkeys", "--dbpath", dir, "--import", filepath.Join(folder, "nomad-gpu.asc"))
	m.does("rpmkeys", check...)
}

// dnfInstalls has dnf, in a root of its own, take the service from the repository.
func dnfInstalls(t *testing.T, folder string) {
	if _, err := exec.LookPath("dnf"); err != nil {
		t.Skip("dnf is not there")
	}
	dir := root(t)
	m := manager{t, dir}
	put(t, filepath.Join(dir, "etc/yum.repos.d/nomad-gpu.repo"), read(t, folder, "rpm/nomad-gpu.repo"), 0o644)
	m.does("dnf", "-q", "-y", "--installroot", dir, "--releasever", "9", "--setopt=reposdir="+filepath.Join(dir, "etc/yum.repos.d"),
		"--setopt=cachedir="+filepath.Join(dir, "var/cache/dnf"), "--setopt=install_weak_deps=False", "install", "nomad-gpu-scheduler")
	if _, err := os.Stat(filepath.Join(dir, "usr/bin/nomad-gpu-scheduler")); err != nil {
		t.Error(err)
	}
}

// The workflow that releases runs nothing that cannot be run by hand.
func TestWorkflowRunsTargets(t *testing.T) {
	workflow, makefile := read(t, "../..", ".github/workflows/release.yml"), read(t, "../..", "GNUmakefile")
	var targets []string
	for _, match := range regexp.MustCompile(`run: make ([a-z-]+)`).FindAllStringSubmatch(workflow, -1) {
		if targets = append(targets, match[1]); !strings.Contains(makefile, "\n"+match[1]+":") {
			t.Errorf("there is no target %s", match[1])
		}
	}
	if want := []string{"release-owner", "release", "release-again", "release-sign"}; !slices.Equal(targets, want) {
		t.Errorf("it runs %v, want %v", targets, want)
	}
}

// The image is an OCI layout whose parts have the digests that it says.
func TestImageIsALayout(t *testing.T) {
	dir := t.TempDir()
	manager{t, dir}.does("tar", "-xf", filepath.Join(releaseToRead(t), "nomad-gpu-scheduler_1.2.3+12.gabc_linux_arm64.oci.tar"), "-C", dir)
	var index, manifest struct {
		Manifests, Layers []descriptor
		Config            descriptor
	}
	parse := func(name string, value any) {
		t.Helper()
		if err := json.Unmarshal([]byte(read(t, dir, name)), value); err != nil {
			t.Fatal(err)
		}
	}
	blob := func(d descriptor) string {
		t.Helper()
		name := "blobs/" + strings.Replace(d.Digest, ":", "/", 1)
		if text := read(t, dir, name); digest([]byte(text)) != d.Digest || int64(len(text)) != d.Size {
			t.Errorf("%s has the digest %s and %d bytes", name, digest([]byte(text)), len(text))
		}
		return name
	}
	parse("index.json", &index)
	parse(blob(index.Manifests[0]), &manifest)
	blob(manifest.Layers[0])
	var config struct {
		Architecture string
		Config       struct{ User string }
	}
	parse(blob(manifest.Config), &config)
	if config.Architecture != "arm64" || config.Config.User != "65534:65534" || index.Manifests[0].Annotations["org.opencontainers.image.ref.name"] != "1.2.3-12.gabc" {
		t.Errorf("it is %+v, %+v", config, index)
	}
}
