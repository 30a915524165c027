// SPDX-License-Identifier: MPL-2.0

package spec

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
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

// recordedDefaults are Docker's, and what containerd's Kubernetes plugin makes of
// containerd's own, as a test in e2e/tools/defaults recorded them from their code.
func recordedDefaults(t *testing.T) (docker, cri peerDefaults) {
	t.Helper()
	var record struct {
		Capabilities, Masked, Readonly []string
		Mounts                         []specs.Mount
		Devices                        []specs.LinuxDeviceCgroup
		Namespaces                     []specs.LinuxNamespace
		Propagation                    string
		Sysctls                        []string
		CRISysctls                     []string            `json:"cri sysctls"`
		Limits                         []specs.POSIXRlimit `json:"limits"`
		CRILimits                      []specs.POSIXRlimit `json:"cri limits"`
		OOMScore                       *int                `json:"oom score"`
		CRIOOMScore                    *int                `json:"cri oom score"`
		Seccomp                        map[string][]string
	}
	text, err := os.ReadFile("testdata/docker-defaults.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &record); err != nil {
		t.Fatal(err)
	}
	return peerDefaults{
			"capabilities": record.Capabilities, "masked paths": record.Masked, "read-only paths": record.Readonly,
			"mounts": mountTexts(record.Mounts), "system calls": record.Seccomp["always"],
			"system calls, some arguments": record.Seccomp["with arguments"],
			"device rules":                 deviceTexts(record.Devices), "namespaces": namespaceTexts(record.Namespaces),
			"propagation": {"of the root directory: " + record.Propagation}, "kernel settings": record.Sysctls,
			"resource limits": limitTexts(record.Limits), "OOM score": scoreTexts(record.OOMScore),
		}, peerDefaults{
			"kernel settings": record.CRISysctls,
			"resource limits": limitTexts(record.CRILimits), "OOM score": scoreTexts(record.CRIOOMScore),
		}
}

// limitTexts are resource limits; what has none has those of whoever starts it.
func limitTexts(limits []specs.POSIXRlimit) []string {
	all := []string{}
	for _, l := range limits {
		all = append(all, fmt.Sprintf("%s %d:%d", strings.ToLower(strings.TrimPrefix(l.Type, "RLIMIT_")), l.Soft, l.Hard))
	}
	return all
}

func scoreTexts(score *int) []string {
	if score == nil {
		return []string{"that of whoever starts it"}
	}
	return []string{fmt.Sprint(*score)}
}

func deviceTexts(rules []specs.LinuxDeviceCgroup) []string {
	number := func(n *int64) string {
		if n == nil || *n < 0 {
			return "*"
		}
		return fmt.Sprint(*n)
	}
	var all []string
	for _, r := range rules {
		kind := map[bool]string{true: "allow", false: "deny"}[r.Allow]
		all = append(all, fmt.Sprintf("%s %s %s:%s %s", kind, cmp.Or(r.Type, "a"), number(r.Major), number(r.Minor), r.Access))
	}
	return all
}

func namespaceTexts(namespaces []specs.LinuxNamespace) []string {
	var all []string
	for _, n := range namespaces {
		all = append(all, string(n.Type)+n.Path)
	}
	return all
}

// defaultsOf are those of a specification.
func defaultsOf(s *oci.Spec) peerDefaults {
	all := peerDefaults{
		"capabilities": s.Process.Capabilities.Bounding, "masked paths": s.Linux.MaskedPaths,
		"read-only paths": s.Linux.ReadonlyPaths, "mounts": mountTexts(s.Mounts),
		"device rules": deviceTexts(s.Linux.Resources.Devices), "namespaces": namespaceTexts(s.Linux.Namespaces),
		"propagation":     {"of the root directory: " + s.Linux.RootfsPropagation},
		"resource limits": limitTexts(s.Process.Rlimits), "OOM score": scoreTexts(s.Process.OOMScoreAdj),
	}
	for _, key := range slices.Sorted(maps.Keys(s.Linux.Sysctl)) {
		all["kernel settings"] = append(all["kernel settings"], key+"="+s.Linux.Sysctl[key])
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
	{"capabilities", "Nomad's own default for all of its drivers leaves out NET_RAW; ping works without it"},
	{"masked paths", ""},
	{"read-only paths", ""},
	{"mounts", "as with Docker, files that an image has in /run are visible, and so are control groups"},
	{"device rules", "runc itself allows its default devices, which these are, and does not allow /dev/fuse (10:229)"},
	{"namespaces", ""},
	{"propagation", ""},
	{"kernel settings", ""},
	{"resource limits", "Docker and containerd pass on the limits of their daemon; here they are systemd's defaults for services"},
	{"OOM score", ""},
	{"system calls", "this is containerd's profile: three calls are about a program's own security labels, and one exists on RISC-V only"},
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
	options, err := Task{Config: defaults(), Policy: policy, Resources: given, MaxOpenFiles: 1 << 20, NetworkSysctls: NetworkSysctls}.Options(image)
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
	ours, containerd := defaultsOf(generated(options...)), defaultsOf(generated())
	docker, cri := recordedDefaults(t)
	maps.Copy(containerd, cri)
	var rows strings.Builder
	rows.WriteString("| | compared with Docker | compared with containerd | |\n|---|---|---|---|\n")
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
