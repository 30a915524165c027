package spec

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/containerd/v2/pkg/oci"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/nomad-gpu/nomad-gpu/internal/golden"
)

// peerDefaults are what a container has that asks for nothing, each part as a set
// of texts that can be compared.
type peerDefaults map[string][]string

// dockerDefaults are Docker's, as a test in e2e/tools/defaults recorded them from
// its code.
func dockerDefaults(t *testing.T) peerDefaults {
	t.Helper()
	var docker struct {
		Capabilities, Masked, Readonly []string
		Mounts                         []specs.Mount
		Seccomp                        map[string][]string
	}
	text, err := os.ReadFile("testdata/docker-defaults.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &docker); err != nil {
		t.Fatal(err)
	}
	return peerDefaults{
		"capabilities": docker.Capabilities, "masked paths": docker.Masked, "read-only paths": docker.Readonly,
		"mounts": mountTexts(docker.Mounts), "system calls": docker.Seccomp["always"],
		"system calls, some arguments": docker.Seccomp["with arguments"],
	}
}

// defaultsOf are those of a specification.
func defaultsOf(s *oci.Spec) peerDefaults {
	all := peerDefaults{
		"capabilities": s.Process.Capabilities.Bounding, "masked paths": s.Linux.MaskedPaths,
		"read-only paths": s.Linux.ReadonlyPaths, "mounts": mountTexts(s.Mounts),
	}
	if s.Linux.Seccomp == nil {
		return all
	}
	for _, rule := range s.Linux.Seccomp.Syscalls {
		part := "system calls"
		if len(rule.Args) > 0 {
			part += ", some arguments"
		}
		if rule.Action == specs.ActAllow {
			all[part] = append(all[part], rule.Names...)
		}
	}
	return all
}

// mountTexts leaves out what means the same wherever it is written: the kernel's
// default of access times, and the size that Docker gives /dev/shm later.
func mountTexts(mounts []specs.Mount) []string {
	var all []string
	for _, m := range mounts {
		options := slices.DeleteFunc(slices.Sorted(slices.Values(m.Options)), func(option string) bool {
			return option == "relatime" || m.Destination == "/dev/shm" && option == "size=65536k"
		})
		all = append(all, fmt.Sprintf("%s %s %s", m.Destination, m.Type, strings.Join(options, ",")))
	}
	return all
}

// parts are those that are compared, with what is to be known of a difference.
var parts = []struct{ name, note string }{
	{"capabilities", "Nomad's own list, which is without NET_RAW for all of its drivers; pings need none"},
	{"masked paths", ""},
	{"read-only paths", ""},
	{"mounts", "an image's own files in /run are seen, and control groups too, as with Docker"},
	{"system calls", "it is containerd's profile: the three are about a program's own security labels, the one is of RISC-V"},
	{"system calls, some arguments", ""},
}

// difference says what ours has and another lacks, and the other way round.
func difference(ours, theirs []string) string {
	missingIn := func(a, b []string) []string {
		rest := slices.DeleteFunc(slices.Sorted(slices.Values(a)), func(s string) bool { return slices.Contains(b, s) })
		for i, text := range rest {
			rest[i] = "`" + text + "`"
		}
		return slices.Compact(rest)
	}
	var texts []string
	if more := missingIn(ours, theirs); len(more) > 0 {
		texts = append(texts, "has also "+strings.Join(more, ", "))
	}
	if missing := missingIn(theirs, ours); len(missing) > 0 {
		texts = append(texts, "lacks "+strings.Join(missing, ", "))
	}
	if texts == nil {
		return "same"
	}
	return strings.Join(texts, "; ")
}

// What a container has that asks for nothing is what it has under Docker and in
// containerd's own default, but for what the documentation says and explains.
func TestDefaultsAreThoseOfOthers(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Skip("the record of Docker's system calls is that of AMD64")
	}
	options, err := Task{Config: defaults(), Policy: policy, Resources: given, MaxOpenFiles: 1 << 20}.Options(image)
	if err != nil {
		t.Fatal(err)
	}
	generated := func(options ...oci.SpecOpts) *oci.Spec {
		s, err := oci.GenerateSpec(namespaces.WithNamespace(t.Context(), "test"), nil, &containers.Container{ID: "box"}, options...)
		if err != nil {
			t.Fatal(err)
		}
		// Those of sysfs lie there as many times as the machine has CPUs.
		s.Linux.MaskedPaths = slices.DeleteFunc(s.Linux.MaskedPaths, func(path string) bool { return filepath.Dir(filepath.Dir(path)) == "/sys/devices/system/cpu" })
		return s
	}
	ours, docker, containerd := defaultsOf(generated(options...)), dockerDefaults(t), defaultsOf(generated())
	var rows strings.Builder
	rows.WriteString("| | beside Docker | beside containerd | |\n|---|---|---|---|\n")
	for _, part := range parts {
		if len(ours[part.name]) == 0 {
			t.Errorf("%s: nothing is compared", part.name)
		}
		besideDocker, besideContainerd := difference(ours[part.name], docker[part.name]), "none there"
		if containerd[part.name] != nil {
			besideContainerd = difference(ours[part.name], containerd[part.name])
		}
		equal := besideDocker == "same" && (besideContainerd == "same" || besideContainerd == "none there")
		if equal == (part.note != "") {
			t.Errorf("%s: beside Docker %s, beside containerd %s, and the note is %q", part.name, besideDocker, besideContainerd, part.note)
		}
		fmt.Fprintf(&rows, "| %s | %s | %s | %s |\n", part.name, besideDocker, besideContainerd, part.note)
	}
	page := filepath.Join("..", "..", "docs", "docker.md")
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	golden.Compare(t, filepath.Join("..", page), golden.Between(t, string(text), "defaults", rows.String()))
}
