// SPDX-License-Identifier: MPL-2.0

package spec

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/containerd/v2/pkg/oci"
	ispec "github.com/opencontainers/image-spec/specs-go/v1"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/nomad-gpu/nomad-gpu/internal/golden"
	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
	"github.com/nomad-gpu/nomad-gpu/internal/taskconfig"
)

// defaults is a config as the schema's defaults leave it.
func defaults() taskconfig.Config {
	return taskconfig.Config{Image: "redis:7", NoNewPrivileges: true, Seccomp: true, HostDNS: true, Swappiness: -1}
}

var (
	policy = taskconfig.Policy{AllowCaps: taskconfig.DefaultCaps, PidsLimit: 4096}
	image  = ispec.ImageConfig{
		Env: []string{"PATH=/bin", "NVIDIA_VISIBLE_DEVICES=all"}, Entrypoint: []string{"/entry"}, Cmd: []string{"serve"}, WorkingDir: "/data",
	}
	given = Resources{CPUShares: 500, CPUFraction: 0.25, CPUs: 8, MemoryBytes: 256 << 20, SwapAccounting: true}
)

// generate applies a task's options as the runtime does, and leaves out what
// differs from machine to machine.
func generate(t *testing.T, task Task) *oci.Spec {
	t.Helper()
	task.MaxOpenFiles, task.NetworkSysctls = 1<<20, NetworkSysctls
	options, err := task.Options(image)
	if err != nil {
		t.Fatal(err)
	}
	ctx := namespaces.WithNamespace(t.Context(), "test")
	s, err := oci.GenerateSpec(ctx, nil, &containers.Container{ID: "box"}, options...)
	if err != nil {
		t.Fatal(err)
	}
	s.Linux.MaskedPaths = nil
	if s.Linux.Seccomp != nil {
		s.Linux.Seccomp = &specs.LinuxSeccomp{DefaultAction: s.Linux.Seccomp.DefaultAction}
	}
	return s
}

func TestGolden(t *testing.T) {
	share, err := NewShare([]gpu.ReservedDevice{slicesOf(uuidA, 8)}, map[string]gpu.GPUState{uuidA: state(uuidA, gpu.SharingMPS)}, taskconfig.GPURequest{ComputeLimitMilli: 800})
	if err != nil {
		t.Fatal(err)
	}
	every := defaults()
	every.Command, every.Args, every.Cwd, every.Hostname, every.Init = "run", []string{"-v"}, "/work", "box", true
	every.ReadonlyRootfs, every.NetworkMode, every.ShmSize = true, "none", "128M"
	every.CapDrop, every.PidsLimit, every.OOMScoreAdj, every.CPUHardLimit = []string{"mknod"}, 64, 10, true
	every.Ulimit, every.Sysctl = []map[string]string{{"nofile": "1:2"}}, []map[string]string{{"net.core.somaxconn": "9"}}
	every.Mounts = []taskconfig.MountConfig{{Source: "/srv/x", Target: "/x", ReadOnly: true}, {Type: "tmpfs", Target: "/t", Size: "1M"}}
	every.MemorySwap, every.Swappiness, every.CPUSetMems = "64M", 0, "0"
	ours := []taskconfig.Mount{{Type: "bind", Source: "/alloc/local", Target: "/local", Options: []string{"rbind", "rw"}}}
	privileged := defaults()
	privileged.HostNetwork, privileged.PIDMode, privileged.IPCMode = true, "host", "host"
	burst := given
	burst.MemoryMaxBytes, burst.CPUSet = 512<<20, "0-1"
	for name, task := range map[string]Task{
		"plain":           {Config: defaults(), Policy: policy, Resources: given, Mounts: ours, Hostname: "1a2b3c4d", Env: map[string]string{"A": "b"}},
		"gpu-slice":       {Config: defaults(), Policy: policy, Resources: given, Share: share, Env: map[string]string{"CUDA_VISIBLE_DEVICES": "0"}},
		"every-option":    {Config: every, Policy: policy, Resources: burst, Mounts: ours, CgroupsPath: "/nomad-gpu/box", InitPath: "/usr/bin/tini-static"},
		"host-namespaces": {Config: privileged, Policy: policy, Resources: given},
		"cgroup-v2":       {Config: defaults(), Policy: policy, Resources: given, Unified: true, Mounts: []taskconfig.Mount{{Type: "bind", Source: "/srv/v", Target: "/v", Options: []string{"rbind", "rslave"}}}},
		"group-network":   {Config: defaults(), Policy: policy, Resources: given, Namespaces: Namespaces{Network: "/run/netns/alloc"}},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := json.MarshalIndent(generate(t, task), "", "  ")
			if err != nil {
				t.Fatal(err)
			}
			golden.Compare(t, name+".json", string(got)+"\n")
		})
	}
}

func TestArgs(t *testing.T) {
	for _, test := range []struct {
		name                string
		entrypoint          []string
		command             string
		args                []string
		imageEntry, imageCm []string
		want                string
	}{
		{"image alone", nil, "", nil, []string{"/e"}, []string{"c"}, "/e c"},
		{"command follows the image's entrypoint", nil, "x", []string{"1"}, []string{"/e"}, []string{"c"}, "/e x 1"},
		{"args alone replace the image's command", nil, "", []string{"1"}, []string{"/e"}, []string{"c"}, "/e 1"},
		{"entrypoint drops the image's command", []string{"/n"}, "", nil, []string{"/e"}, []string{"c"}, "/n"},
		{"all", []string{"/n"}, "x", []string{"1"}, []string{"/e"}, []string{"c"}, "/n x 1"},
	} {
		task := Task{Config: taskconfig.Config{Entrypoint: test.entrypoint, Command: test.command, Args: test.args}}
		got, err := task.args(ispec.ImageConfig{Entrypoint: test.imageEntry, Cmd: test.imageCm})
		if err != nil || strings.Join(got, " ") != test.want {
			t.Errorf("%s: got %q, %v; want %q", test.name, got, err, test.want)
		}
	}
	if _, err := (Task{}).args(ispec.ImageConfig{}); err == nil || !strings.Contains(err.Error(), "nothing to run") {
		t.Errorf("an image without command: %v", err)
	}
}

func TestMountsOfTheShareStayWhole(t *testing.T) {
	share, err := NewShare([]gpu.ReservedDevice{slicesOf(uuidA, 8)}, map[string]gpu.GPUState{uuidA: state(uuidA, gpu.SharingMPS)}, taskconfig.GPURequest{})
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct{ target, says string }{
		{"/run/nomad-gpu", `would cover "/run/nomad-gpu/mps/pipe"`},
		{"/dev/shm", `would cover "/dev/shm"`},
		{"/dev/shm/mine", `lies in "/dev/shm"`},
		{"/run/nomad-gpu/mps/pipe/control", `lies in "/run/nomad-gpu/mps/pipe"`},
		{"/run/nomad-gpu/other", ""},
	} {
		config := defaults()
		config.Mounts = []taskconfig.MountConfig{{Type: "tmpfs", Target: test.target}}
		_, err := Task{Config: config, Policy: policy, Resources: given, Share: share}.Options(image)
		if test.says == "" && err != nil || test.says != "" && (err == nil || !strings.Contains(err.Error(), test.says)) {
			t.Errorf("%s: got %v, want %q", test.target, err, test.says)
		}
	}
	// A volume of Nomad's is a mount like any other.
	volume := []taskconfig.Mount{{Type: "bind", Source: "/srv/v", Target: "/dev/shm/v", Options: []string{"rbind"}}}
	_, err = Task{Config: defaults(), Policy: policy, Resources: given, Share: share, Mounts: volume}.Options(image)
	if err == nil || !strings.Contains(err.Error(), `target "/dev/shm/v" lies in "/dev/shm"`) {
		t.Errorf("volume: got %v", err)
	}
}

func TestMPSTaskCannotSizeItsShm(t *testing.T) {
	config := defaults()
	config.ShmSize = "1G"
	_, err := Task{Config: config, Policy: policy, Share: Share{MPS: true}}.Options(image)
	if err == nil || !strings.Contains(err.Error(), "uses the /dev/shm of the MPS daemon") {
		t.Errorf("got %v", err)
	}
}
